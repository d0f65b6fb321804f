"""What an acquisition leaves for people."""

from ralseg.engine.selection import mask_name


def test_masks_never_leave_their_folder_nor_collide():
    names = ("a/b.png", "frame.0001", "frame.0002", "../x.png", "a/../x.png", "/etc/x.jpg", "x.png")
    places = [str(mask_name(name)) for name in names]
    assert places == ["a/b.png", "frame.0001.png", "frame.0002.png", "__/x.png", "a/__/x.png", "etc/x.png", "x.png"]

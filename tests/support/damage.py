"""Random damage to the content of files."""

from hypothesis import strategies as st

damages = st.lists(
    st.tuples(st.sampled_from(["flip", "cut", "insert", "swap"]), st.floats(0, 1), st.binary(min_size=1, max_size=8)),
    min_size=1,
    max_size=4,
)


def damaged(content: bytes, steps) -> bytes:
    data = bytearray(content)
    for how, where, extra in steps:
        place = int(where * max(len(data) - 1, 0))
        if how == "flip" and data:
            data[place] ^= extra[0] or 1
        elif how == "cut":
            del data[place : place + 40 * len(extra)]
        elif how == "insert":
            data[place:place] = extra
        else:
            data[place : place + len(extra)] = extra
    return bytes(data)

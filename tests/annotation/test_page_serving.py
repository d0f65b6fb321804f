"""The page at an address: a real server on this machine, its port, its secret, and superpixels."""

import json
import socket
import stat
import urllib.error
import urllib.request
from contextlib import contextmanager

import numpy as np
import pytest

from ralseg.annotation.page.serving import FILE, PORT, Address
from ralseg.annotation.page.superpixels import LEAST, MOST_PIXELS, PATCHES, superpixels
from ralseg.errors import ConfigError
from support.label_requests import HEIGHT, WIDTH, make_answers, painted
from support.page import make_desk, serve


@contextmanager
def serving(folder, desk):
    address, server = serve(folder, desk)
    try:
        yield address
    finally:
        server.stop()


def test_a_real_server(tmp_path):
    answers = make_answers(tmp_path / "to_label")
    with serving(tmp_path, make_desk(answers)) as address:
        page = urllib.request.urlopen(address.url()).read().decode()
        assert "Colour the framed region" in page
        url = f"{address.url()}api/regions/10/mask?who=Ada"
        reply = urllib.request.urlopen(urllib.request.Request(url, painted(1).tobytes(), method="POST"))
        assert json.load(reply) == {"version": 1}
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"http://127.0.0.1:{address.port}/")
        foreign = urllib.request.Request(address.url(), headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(foreign)
    assert (answers.mask(10) == 1).all()


@pytest.mark.parametrize("header", ["Content-Length: 99999999999", "Transfer-Encoding: chunked"])
def test_a_body_without_an_end_is_cut_off(tmp_path, header):
    answers = make_answers(tmp_path / "to_label")
    with (
        serving(tmp_path, make_desk(answers)) as address,
        socket.create_connection(("127.0.0.1", address.port)) as line,
    ):
        line.settimeout(20)
        place = f"/{address.token}/api/regions/10/mask?who=Ada"
        line.sendall(f"POST {place} HTTP/1.1\r\nHost: 127.0.0.1\r\n{header}\r\n\r\n".encode())
        block = b"10000\r\n" + bytes(65536) + b"\r\n" if "chunked" in header else bytes(65536)
        sent = 0
        with pytest.raises((ConnectionError, TimeoutError)):  # noqa: PT012 - some of it is taken before the end
            while sent < 10**9:
                sent += line.send(block)
        assert sent < 10**8
    assert answers.mask(10) is None


def test_the_address_stays_the_same(tmp_path):
    first = Address(tmp_path)
    first.socket.close()
    second = Address(tmp_path)
    second.socket.close()
    assert first.url() == second.url()
    assert len(first.token) >= 32
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    assert Address(tmp_path / "other").token != first.token


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", '{"token": "short", "port": "x"}', '{"token": "/../", "port": 99999}']
)
def test_a_damaged_note_of_the_address_means_a_new_one(tmp_path, damage):
    (tmp_path / FILE).write_text(damage)
    address = Address(tmp_path)
    address.socket.close()
    assert len(address.token) == 40
    assert address.port >= PORT


def test_a_port_that_is_taken(tmp_path, monkeypatch):
    monkeypatch.setattr("ralseg.annotation.page.serving._PATIENCE", 0.0)
    first = Address(tmp_path / "a")
    with pytest.raises(ConfigError, match=f"--port {first.port}: nobody can listen there"):
        Address(tmp_path / "b", port=first.port)
    other = Address(tmp_path / "c")
    assert other.port != first.port
    for address in (first, other):
        address.socket.close()


def test_addresses_that_are_not_this_machine_s(tmp_path):
    with pytest.raises(ConfigError, match="--host 203"):
        Address(tmp_path, host="203.0.113.7")
    everywhere = Address(tmp_path, host="0.0.0.0")
    everywhere.socket.close()
    assert everywhere.url().startswith("http://127.0.0.1:")


# -- superpixels -----------------------------------------------------------------------------------


def is_connected(labels: np.ndarray) -> bool:
    from scipy import ndimage

    return all(ndimage.label(labels == number)[1] == 1 for number in np.unique(labels))


@pytest.mark.parametrize("size", [(HEIGHT, WIDTH), (1, 1), (1, 40), (64, 64), (37, 90)])
@pytest.mark.parametrize("level", range(len(PATCHES)))
def test_patches_are_connected_and_numbered_without_gaps(size, level):
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    found = superpixels(image, level)
    assert (found.shape, found.dtype) == (size, np.uint16)
    assert np.unique(found).tolist() == list(range(found.max() + 1))
    assert is_connected(found)


def test_coarser_levels_have_fewer_patches():
    image = np.random.default_rng(0).integers(90, 110, (96, 96, 3), np.uint8)
    counts = [superpixels(image, level).max() + 1 for level in range(len(PATCHES))]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] <= (96 / LEAST) ** 2


@pytest.mark.parametrize("contrast", [200, 25])  # also in a dark image
def test_patches_follow_edges(contrast):
    rows, columns = np.mgrid[:64, :64]
    disc = (rows - 30) ** 2 + (columns - 35) ** 2 < 15**2
    noise = np.random.default_rng(0).integers(0, 4, (64, 64, 3))
    image = (noise + contrast * disc[..., None]).astype(np.uint8)
    found = superpixels(image, 2)
    inside = np.array([disc[found == number].mean() for number in range(found.max() + 1)])
    painted_by_clicks = inside[found] > 0.5
    assert (painted_by_clicks & disc).sum() / (painted_by_clicks | disc).sum() > 0.97


def test_large_regions_are_cut_at_a_lower_resolution():
    image = np.zeros((MOST_PIXELS // 300, 900, 3), np.uint8)
    assert superpixels(image, 3).shape == image.shape[:2]

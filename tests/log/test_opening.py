"""Which directory a URL names, for the library and the command line alike (``log.opening``)."""

from __future__ import annotations

from pathlib import Path

import pytest

from gasoline_es.errors import LogError
from gasoline_es.log.opening import directory_of, open_log
from tests.cli.terminal import invoke


@pytest.mark.parametrize(
    ("url", "directory"),
    [("file:./data", "./data"), ("file:/var/d", "/var/d"), ("file:///var/d", "/var/d"), ("file:data", "data")],
)
def test_a_file_url_names_a_directory(url: str, directory: str) -> None:
    assert directory_of(url) == directory


def test_a_tilde_is_the_home_for_the_command_line_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert directory_of("file:~/d") == f"{tmp_path}/d"
    assert f"there is no log in {tmp_path}/d" in invoke("--log", "file:~/d", "log", "info").stderr


async def test_two_slashes_name_a_host_and_are_refused_with_both_right_spellings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a web process and a worker that differ in it would never meet."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LogError, match="write file:data/orders for a directory below this one, or file:/data/orders"):
        await open_log("file://data/orders")
    done = invoke("--log", "file://data", "workflow", "list")
    assert (done.status, done.stdout) == (2, "")
    assert "names a host" in done.stderr
    assert list(tmp_path.iterdir()) == []


async def test_a_namespace_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    """Whoever moves a log by a Kafka URL may have meant another than the URL names."""
    url = f"file:{tmp_path}/data"
    for namespace in ("stock", "default"):
        await (await open_log(url, namespace=namespace)).close()
    with pytest.raises(LogError, match=r"there is no namespace 'shop' in .*/data, which has default, stock$"):
        await open_log(url, namespace="shop", readonly=True)

"""Servers from Debian's packages: nothing else is unpacked, and what is missing is named."""

from __future__ import annotations

import io
import platform
import shutil
from pathlib import Path

import pytest
import redis

from testbed import debian, servers


@pytest.mark.skipif(platform.machine() != "x86_64" or shutil.which("dpkg-deb") is None, reason="only where they run")
def test_another_package_than_the_one_that_was_pinned_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debian, "FOLDER", tmp_path / "servers")
    monkeypatch.setattr("urllib.request.urlopen", lambda *_args, **_options: io.BytesIO(b"something else"))
    with pytest.raises(SystemExit, match=r"redict-tools.*not the package that was expected"):
        debian.fetch()
    assert [*(tmp_path / "servers").iterdir()] == []


def test_a_server_that_was_not_fetched_is_missing_and_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian, "FOLDER", tmp_path)
    assert "`make servers` fetches it" in str(debian.program("redict-server"))


@pytest.mark.parametrize("kind", servers.MORE_KINDS)
def test_a_fetched_server_is_what_its_name_says(kind: servers.Kind) -> None:
    product, version = kind[:-2], f"{kind[-2]}.{kind[-1]}"
    with servers.start(kind, port=None) as server, redis.Redis.from_url(server.unix_url) as client:
        assert str(client.info("server")[f"{product}_version"]).startswith(version)

"""Servers that Debian has and this machine has not: `make servers` puts them in ``.servers``.

The packages are of newer Debians and need a newer libc than the machine may have: they come with their libraries, and a
script starts each by its own loader. Nothing is installed. When Debian replaces a package, its line below gets the new
name and checksum; until then this fails, and tests for that server are skipped.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

__all__ = ["FOLDER", "PROGRAMS", "fetch", "program"]

FOLDER = Path(__file__).resolve().parents[1] / ".servers"
#: Where they are in the pool, and their SHA-256.
_PACKAGES = {
    "r/redict/redict-tools_7.3.6+ds-3": "941faf32f33bc66d5af0d01c0374bf19ae38a16117ca3853f468997955a01bf9",
    "h/hiredict/libhiredict1.3.1_1.3.1-2+b2": "772040ef6a7b05bdf1feb17abb962513091aa5bb5a50abf744e53cc46fe4136d",
    "r/redis/redis-tools_8.0.2-3+deb13u3": "ca91969383b5e9ea7f278dde513e2bc444914961e19e7d94cda7745a95f6686a",
    "v/valkey/valkey-tools_8.1.1+dfsg1-3+deb13u3": "0c800fe97e57ec7e8e71a147a0d1119955ffd6d083e73618ce946a44d3b827dd",
    "n/nutcracker/nutcracker_0.5.0+dfsg-2+b1": "9e860ef035f9439c36bc624d8354ed9b2efa50e5faac31ac985b2373b28a2f31",
    "g/glibc/libc6_2.41-12+deb13u5": "b59b0625cd1a791375d40dab23a4d5d3d0641e3d0a773501becdc3725b7f99cf",
    "g/gcc-14/libatomic1_14.2.0-19": "212b399aae2f7299203d261a57e49372e09565a9a5ea971905f94a3960366c05",
    "g/gcc-14/libgcc-s1_14.2.0-19": "3c71917b490d1a17aed43196a2787a256ecf060526cdb20216a74bedc061b150",
    "g/gcc-14/libstdc++6_14.2.0-19": "ab1fa05837aa7a92aae748fd07a18a35f7d18bb4a71c4724fe2bbf0e32089de0",
    "j/jemalloc/libjemalloc2_5.3.0-3": "e7d64919e620e8ea46960104efe1e9c977d751e5b610a5d89b0b51aeae9530d7",
    "libl/liblzf/liblzf1_3.6-4+b3": "1f7677f1098f9f643806d64a2ed54d14bcd5954e71b63c2aa1e9bb7bcd84d783",
    "o/openssl/libssl3t64_3.5.9-1~deb13u1": "ffefb9af363e0e4592251b2533eb06453c8e470f7772e40263c4b2129251a6d5",
    "s/systemd/libsystemd0_257.13-1~deb13u1": "ab0d4127b5e46e6f8c015a1db15a62ba9ae274cdefa150083adf90ada0600ea1",
    "libc/libcap2/libcap2_2.75-10+deb13u1+b3": "89fc4d34fc7a28ad6f0fcd0c561ab253b9dedf6f77f5a000b47c276c8295bf67",
    "libz/libzstd/libzstd1_1.5.7+dfsg-1": "2f6a2aeacfc925eba8b00ac9139bc4bfccf8cacb09eb93de067074b26948eef9",
    "z/zlib/zlib1g_1.3.dfsg+really1.3.1-1+deb13u1": "8c27c342230503b73dfde629642c3b352e87b554e06d60cf58772f236a305ceb",
    "liby/libyaml/libyaml-0-2_0.2.5-2": "8a5475402801de445a17887bb72d03613565a6a84b216b4b606d1462c613eeb2",
}
#: What is run, by the name that it is given: a server tells by it that it is none of its tools.
PROGRAMS = {
    "redict-server": "usr/bin/redict-check-rdb",
    "redis-server": "usr/bin/redis-check-rdb",
    "valkey-server": "usr/bin/valkey-check-rdb",
    "nutcracker": "usr/sbin/nutcracker",
}
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_TIMEOUT_S = 60


def program(name: str) -> Path | str:
    """The program, one of `PROGRAMS`, or a sentence that says why this machine has none."""
    path = FOLDER / "bin" / name
    return path if path.exists() else f"no {name} from Debian: `make servers` fetches it (on amd64)"


def fetch() -> None:
    """Download what is missing, compare checksums, unpack all, and see that each program runs."""
    if platform.machine() != "x86_64" or shutil.which("dpkg-deb") is None:
        raise SystemExit("servers from Debian: only for amd64, with dpkg-deb")
    if all(not isinstance(program(name), str) for name in PROGRAMS):
        return
    mirror = _mirror()
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as made:
        root = Path(made, "root")
        for name, digest in _PACKAGES.items():
            package = Path(made, "package.deb")
            with urllib.request.urlopen(f"{mirror}{name}_amd64.deb", timeout=_TIMEOUT_S) as answer:
                package.write_bytes(answer.read())
            if hashlib.sha256(package.read_bytes()).hexdigest() != digest:
                raise SystemExit(f"{name}: not the package that was expected")
            subprocess.run(["dpkg-deb", "-x", package, root], check=True)
        shutil.rmtree(FOLDER / "root", ignore_errors=True)
        root.rename(FOLDER / "root")
    for name in PROGRAMS:
        _write_starter(name)


def _mirror() -> str:
    """Return the address of the Debian archive that this machine installs from."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    listed = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False).stdout.split()
    found = next((each for each in listed if each.rstrip("/").endswith("/debian")), None)
    if found is None:
        raise SystemExit("servers from Debian: apt knows no mirror of the Debian archive")
    return f"{found.rstrip('/')}/pool/main/"


def _write_starter(name: str) -> None:
    libraries = FOLDER / "root" / _LIBRARIES
    loader = f"'{libraries}/ld-linux-x86-64.so.2' --library-path '{libraries}' --argv0 {name}"
    path = FOLDER / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\nexec {loader} '{FOLDER / 'root' / PROGRAMS[name]}' \"$@\"\n")
    path.chmod(0o755)
    said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if said.returncode != 0:
        os.unlink(path)
        raise SystemExit(f"{name} does not run here: {said.stderr.strip()}")
    print((said.stdout or said.stderr).splitlines()[0])


if __name__ == "__main__":
    try:
        fetch()
    except OSError as error:
        sys.exit(f"servers from Debian: {error}")

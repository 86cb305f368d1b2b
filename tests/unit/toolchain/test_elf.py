"""Shared libraries are resolved by the loader; a missing one is an error."""

import shutil
import sys
from pathlib import Path

import pytest

from toolchain import elf
from toolchain.errors import TestbedError

PRINTED = """\
/usr/bin/python3:
\tlinux-vdso.so.1 (0x00007f1e57b4f000)
\tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f1e57a5e000)
\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f1e57832000)
\t/lib64/ld-linux-x86-64.so.2 (0x00007f1e57b51000)
/site/thing.so:
\tlinux-vdso.so.1 (0x00007f1e57b4f000)
\tlibthing-1f.so.1 => /site/libs with space/libthing-1f.so.1 (0x00007f1e57a5e000)
\tlibother.so.2 => not found
\tlibc.so.6 => /usr/lib/libc.so.6 (0x00007f1e57832000)
/bin/busybox:
\tnot a dynamic executable
/bin/small:
\tstatically linked
"""


def test_ldd_output_is_parsed() -> None:
    assert elf.parse(PRINTED) == elf.Resolved(
        libraries={
            "libm.so.6": {Path("/lib/x86_64-linux-gnu/libm.so.6")},
            "libc.so.6": {Path("/lib/x86_64-linux-gnu/libc.so.6"), Path("/usr/lib/libc.so.6")},
            "libthing-1f.so.1": {Path("/site/libs with space/libthing-1f.so.1")},
        },
        fixed={Path("/lib64/ld-linux-x86-64.so.2")},
        missing={"libother.so.2"},
    )


def test_empty_output_means_no_libraries() -> None:
    assert elf.parse("") == elf.Resolved()


def test_the_closure_of_a_real_program_has_the_loader_and_libraries_beside_libc() -> None:
    found = elf.closure([Path(sys.executable)])
    places = {Path(place).name: Path(place).parent for place in found}
    assert all(file.exists() for file in found.values())
    assert any(name.startswith("ld-linux") for name in places)
    libraries = {name: place for name, place in places.items() if not name.startswith("ld-linux")}
    assert {"libc.so.6", "libm.so.6", "libgcc_s.so.1"} <= libraries.keys()
    assert set(libraries.values()) == {places["libc.so.6"]}


def test_libraries_that_ship_with_their_object_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = PRINTED.replace("not found", "/lib/x86_64-linux-gnu/libm.so.6 (0x1)").replace("/usr/lib/libc", LIBC)
    monkeypatch.setattr(elf, "_ldd", lambda _: printed)
    assert not [place for place in elf.closure([], own=Path("/site")) if "libthing" in place]
    assert [place for place in elf.closure([]) if "libthing" in place]


LIBC = "/lib/x86_64-linux-gnu/libc"


def test_a_missing_library_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elf, "_ldd", lambda _: PRINTED.replace("/usr/lib/libc", LIBC))
    with pytest.raises(TestbedError, match=r"does not find libother\.so\.2"):
        elf.closure([])


def test_two_versions_of_one_library_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elf, "_ldd", lambda _: PRINTED)
    with pytest.raises(TestbedError, match=r"several versions of libc\.so\.6 are needed"):
        elf.closure([])


def test_a_missing_object_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="no-such-program"):
        elf.closure([tmp_path / "no-such-program"])


def test_static_programs_are_detected() -> None:
    dynamic = shutil.which("nsenter")
    assert dynamic is not None
    assert elf.is_static(Path("/sbin/ldconfig"))
    assert not elf.is_static(Path(dynamic))
    assert elf.is_elf(Path(dynamic))
    assert not elf.is_elf(Path(__file__))
    assert not elf.is_static(Path(__file__)), "a script needs its interpreter"

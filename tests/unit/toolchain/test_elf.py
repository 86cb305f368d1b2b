"""Libraries are named by the loader, all of them, or the image is not made."""

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


def test_what_the_loader_says_is_understood() -> None:
    assert elf.parse(PRINTED) == elf.Resolved(
        libraries={
            "libm.so.6": {Path("/lib/x86_64-linux-gnu/libm.so.6")},
            "libc.so.6": {Path("/lib/x86_64-linux-gnu/libc.so.6"), Path("/usr/lib/libc.so.6")},
            "libthing-1f.so.1": {Path("/site/libs with space/libthing-1f.so.1")},
        },
        fixed={Path("/lib64/ld-linux-x86-64.so.2")},
        missing={"libother.so.2"},
    )


def test_nothing_said_is_nothing_needed() -> None:
    assert elf.parse("") == elf.Resolved()


def test_the_closure_of_a_real_program_holds_loader_and_libraries_beside_libc() -> None:
    found = elf.closure([Path(sys.executable)])
    places = {Path(place).name: Path(place).parent for place in found}
    assert all(file.exists() for file in found.values())
    assert any(name.startswith("ld-linux") for name in places)
    libraries = {name: place for name, place in places.items() if not name.startswith("ld-linux")}
    assert {"libc.so.6", "libm.so.6", "libgcc_s.so.1"} <= libraries.keys()
    assert set(libraries.values()) == {places["libc.so.6"]}


def test_libraries_that_travel_with_their_object_are_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = PRINTED.replace("not found", "/lib/x86_64-linux-gnu/libm.so.6 (0x1)").replace("/usr/lib/libc", LIBC)
    monkeypatch.setattr(elf, "_ldd", lambda _: printed)
    assert not [place for place in elf.closure([], own=Path("/site")) if "libthing" in place]
    assert [place for place in elf.closure([]) if "libthing" in place]


LIBC = "/lib/x86_64-linux-gnu/libc"


def test_a_library_that_is_not_found_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elf, "_ldd", lambda _: PRINTED.replace("/usr/lib/libc", LIBC))
    with pytest.raises(TestbedError, match=r"does not find libother\.so\.2"):
        elf.closure([])


def test_one_library_in_two_versions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elf, "_ldd", lambda _: PRINTED)
    with pytest.raises(TestbedError, match=r"libc\.so\.6 is wanted in several versions"):
        elf.closure([])


def test_an_object_that_is_not_there_is_named(tmp_path: Path) -> None:
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

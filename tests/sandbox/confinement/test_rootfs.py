from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from aisotools.sandbox.confinement import rootfs
from aisotools.sandbox.confinement.rootfs import Attribute, HostEntry, RootPlan, plan_root

FOLDER, FILE = HostEntry(kind="folder"), HostEntry(kind="file")
INTERPRETER = {
    "/usr": FOLDER,
    "/usr/lib/python3": FOLDER,
    "/lib": HostEntry(kind="link", target="usr/lib"),
    "/etc/localtime": HostEntry(kind="link", target="/usr/share/zoneinfo/UTC"),
    "/etc/ld.so.cache": FILE,
    "/dev/null": FILE,
}


def plan(
    workspace: str = "/srv/me/work", *, scratch: str = "/tmp/scratch", readable: Iterable[str] = ()
) -> RootPlan:
    return plan_root(
        interpreter=INTERPRETER,
        readable=dict.fromkeys(readable, FOLDER),
        workspace=workspace,
        scratch=scratch,
        memory_bytes=1 << 20,
    )


# ---------------------------------------------------------------- the plan


def test_only_the_workspace_and_the_scratch_folder_can_be_written() -> None:
    made = plan(readable=["/data"])
    writable = {bind.path for bind in made.binds if Attribute.READ_ONLY not in bind.attributes}
    assert writable == {"/srv/me/work", "/tmp/scratch"}
    assert all(Attribute.NO_SETUID in bind.attributes for bind in made.binds)
    assert {b.path for b in made.binds if Attribute.NO_DEVICES not in b.attributes} == {"/dev/null"}


def test_folders_inside_mounted_ones_are_not_mounted_again() -> None:
    assert [bind.path for bind in plan().binds].count("/usr/lib/python3") == 0


def test_files_of_others_become_the_workers_only_where_the_user_named_them() -> None:
    made = plan(readable=["/data"])
    assert {bind.path for bind in made.binds if bind.mapped} == {"/srv/me/work", "/tmp/scratch", "/data"}


def test_links_are_made_anew() -> None:
    links = dict(plan().links)
    assert links["/lib"] == "usr/lib"
    assert links["/etc/localtime"] == "/usr/share/zoneinfo/UTC"
    assert links["/dev/fd"] == "/proc/self/fd"


def test_folders_come_before_what_lies_in_them() -> None:
    paths = [bind.path for bind in plan("/data/work", readable=["/data"]).binds]
    assert paths.index("/data") < paths.index("/data/work")


def test_nothing_below_the_workspace_is_a_mount_of_its_own() -> None:
    """A worker of the past may have put a link to elsewhere in that place."""
    made = plan("/w", readable=["/w/data"])
    assert "/w/data" not in {bind.path for bind in made.binds}


@pytest.mark.parametrize(
    ("workspace", "readable", "alias"),
    [
        ("/srv/me/work", [], True),
        ("/workspace", [], False),  # it lies there anyway
        ("/workspace/mine", [], False),  # which could not be seen any more
        ("/srv/me/work", ["/workspace/data"], False),
        ("/srv/me/work", ["/workspaces"], True),
    ],
)
def test_the_alias_gives_way(workspace: str, readable: list[str], alias: bool) -> None:
    made = plan(workspace, readable=readable)
    assert made.alias is alias
    assert ("/workspace" in made.mount_points()) is (alias or workspace == "/workspace")


def test_a_private_folder_gives_way_to_one_that_was_asked_for() -> None:
    assert dict(plan(readable=["/tmp"]).memory).keys() == {"/dev/shm"}
    assert dict(plan("/dev/shm").memory).keys() == {"/tmp"}


def test_links_are_followed_only_on_request(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    link, real = str(tmp_path / "link"), str(tmp_path / "real")
    assert rootfs.look_up([link, str(tmp_path / "missing")], follow=False) == {
        link: HostEntry(kind="link", target="real")
    }
    assert rootfs.look_up([link], follow=True) == {link: HostEntry(kind="link", target="real"), real: FOLDER}


# ---------------------------------------------------------------- the check

TABLE = """1 2 0:1 / / ro,nosuid - tmpfs none rw
2 1 0:2 / /proc ro,nosuid - proc none rw
3 1 0:3 / /tmp rw,nosuid - tmpfs none rw
4 1 0:4 / /srv/me/my\\040work rw,nosuid - ext4 none rw
"""


def test_the_mount_table_is_read() -> None:
    options = {path: options for path, options, _ in rootfs.read_mounts(TABLE)}
    assert options["/srv/me/my work"] == {"rw", "nosuid"}


def test_flaws_are_named(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("")
    needed = rootfs.file_identities([str(tmp_path / "kept"), str(tmp_path / "missing")])
    assert len(needed) == 1
    (tmp_path / "other").write_text("")
    (tmp_path / "other").replace(tmp_path / "kept")
    made = plan("/srv/me/my work")
    table = (
        TABLE.replace("ro,nosuid - tmpfs", "rw - tmpfs") + "5 1 0:5 / /mnt/leak rw,nosuid - ext4 none rw\n"
    )
    found = list(rootfs.find_flaws(made, made.mount_points(), needed | {"/no/such": (1, 1)}, table))
    assert "'/no/such' is needed and cannot be reached (No such file or directory)" in found
    assert f"{str(tmp_path / 'kept')!r} is another file than before" in found
    assert "something is mounted at '/mnt/leak'" in found
    assert "'/' can be written" in found
    assert "programs at '/' could gain rights" in found
    assert "nothing is mounted at '/usr'" in found
    assert any(flaw.endswith("lies in the root folder") for flaw in found)  # this test sees all of the host

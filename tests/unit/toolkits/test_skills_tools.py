"""Skills are offered by a line each, and loaded when a model asks for one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.errors import InvalidArgument, InvalidNumber
from holdfast.toolkits.files import FileTooLarge, NotText, PathRefused
from holdfast.toolkits.skills import (
    SkillClash,
    SkillFileMissing,
    SkillFolderInvalid,
    SkillInvalid,
    SkillLimits,
    SkillUnknown,
    skills,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "skills"
    path.mkdir()
    return path


def write(folder: Path, name: str, description: str = "Does it.", body: str = "Do it well.\n") -> Path:
    path = folder / name / "SKILL.md"
    path.parent.mkdir(parents=True)
    path.write_text(f"---\nname: {name}\ndescription: {description}\n---\n{body}", encoding="utf-8")
    return path


def made(*folders: Path, **options: Any) -> tuple[Callable[..., str], Callable[..., str]]:
    load, read = skills(*folders, **options)
    return load, read


# ---- what is offered -------------------------------------------------------------------------------------------------


def test_the_tool_that_loads_lists_every_skill_with_its_description_by_name(folder: Path) -> None:
    for name in ("zip", "pdf", "docx"):
        write(folder, name, f"About {name}.")
    load, _ = skills(folder)
    assert load.description.splitlines()[-3:] == ["- docx: About docx.", "- pdf: About pdf.", "- zip: About zip."]


def test_the_same_folder_gives_the_same_tools(folder: Path) -> None:
    for name in ("b", "a", "c"):
        write(folder, name)
    assert [tool.digest for tool in skills(folder)] == [tool.digest for tool in skills(folder)]


def test_no_body_is_read_before_it_is_asked_for(folder: Path) -> None:
    path = write(folder, "pdf")
    path.write_bytes(path.read_bytes() + b"\xff not text")
    load, _ = skills(folder)
    assert "Do it well" not in load.description


def test_both_tools_only_read(folder: Path) -> None:
    write(folder, "pdf")
    assert [(tool.name, tool.read_only) for tool in skills(folder)] == [("load_skill", True), ("read_skill_file", True)]


def test_files_beside_the_skills_and_what_is_hidden_are_no_skills(folder: Path) -> None:
    write(folder, "pdf")
    (folder / "README.md").write_text("about")
    (folder / ".git").mkdir()
    load, _ = skills(folder)
    assert load.description.count("\n- ") == 1


# ---- loading ---------------------------------------------------------------------------------------------------------


def test_a_skill_is_loaded_with_its_body_and_the_names_of_its_files(folder: Path) -> None:
    write(folder, "pdf", body="# Steps\n1. Look.\n")
    (folder / "pdf" / "ref").mkdir()
    (folder / "pdf" / "ref" / "fields.md").write_text("a\n")
    load, _ = made(folder)
    said = load(name="pdf")
    assert "# Steps\n1. Look." in said
    assert "- ref/fields.md (2 bytes)" in said
    assert "description:" not in said


def test_a_changed_skill_is_seen_at_the_next_load(folder: Path) -> None:
    path = write(folder, "pdf")
    load, _ = made(folder)
    path.write_text("---\nname: pdf\ndescription: Other.\n---\nDo it better.\n")
    assert "Do it better." in load(name="pdf")


def test_a_skill_that_was_broken_meanwhile_says_so(folder: Path) -> None:
    path = write(folder, "pdf")
    load, _ = made(folder)
    path.write_text("no front matter")
    with pytest.raises(SkillInvalid, match=r"'pdf/SKILL\.md' can't be used"):
        load(name="pdf")


def test_a_skill_that_was_removed_meanwhile_says_so_without_the_place_of_the_folder(folder: Path) -> None:
    path = write(folder, "pdf")
    load, _ = made(folder)
    path.unlink()
    with pytest.raises(SkillInvalid, match="there is no SKILL") as caught:
        load(name="pdf")
    assert str(folder) not in str(caught.value)


def test_an_unknown_skill_is_refused_with_those_that_there_are(folder: Path) -> None:
    write(folder, "pdf")
    load, read = made(folder)
    with pytest.raises(SkillUnknown, match="there are pdf"):
        load(name="docx")
    with pytest.raises(SkillUnknown):
        read(name="../skills/pdf", path="SKILL.md")


def test_a_skill_that_grew_beyond_its_limit_is_not_loaded(folder: Path) -> None:
    path = write(folder, "pdf")
    load, _ = made(folder, limits=SkillLimits(skill_bytes=200))
    path.write_bytes(path.read_bytes() + b"x" * 200)
    with pytest.raises(SkillInvalid, match="the limit is 200"):
        load(name="pdf")


def test_the_list_of_files_is_bounded(folder: Path) -> None:
    write(folder, "pdf")
    for number in range(5):
        (folder / "pdf" / f"{number}.md").write_text("x")
    load, _ = made(folder, limits=SkillLimits(files=3))
    said = load(name="pdf")
    assert said.count("(1 bytes)") == 3
    assert said.endswith("(There are more.)")


# ---- files -----------------------------------------------------------------------------------------------------------


def test_a_file_of_a_skill_comes_in_pages(folder: Path) -> None:
    write(folder, "pdf")
    (folder / "pdf" / "long.md").write_text("".join(f"line {number}\n" for number in range(1, 11)))
    _, read = made(folder)
    assert read(name="pdf", path="long.md", start=4, lines=2) == (
        "     4\tline 4\n     5\tline 5\n(Lines 4 to 5 of 10. Go on with start=6.)"
    )


@pytest.mark.parametrize("path", ["../other/SKILL.md", "/etc/passwd", "..", "", "~/x", "a\\b"])
def test_a_path_out_of_a_skill_is_refused(folder: Path, path: str) -> None:
    write(folder, "pdf")
    write(folder, "other")
    _, read = made(folder)
    with pytest.raises(PathRefused):
        read(name="pdf", path=path)


def test_a_link_out_of_the_folder_is_not_followed(folder: Path, tmp_path: Path) -> None:
    write(folder, "pdf")
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "pdf" / "link.md").symlink_to(tmp_path / "secret.txt")
    _, read = made(folder)
    with pytest.raises(PathRefused, match="leads out"):
        read(name="pdf", path="link.md")


def test_a_file_that_is_missing_says_how_to_find_those_that_are_there(folder: Path) -> None:
    write(folder, "pdf")
    _, read = made(folder)
    with pytest.raises(SkillFileMissing, match="load_skill lists the files"):
        read(name="pdf", path="none.md")


def test_a_file_that_is_no_text_is_refused(folder: Path) -> None:
    write(folder, "pdf")
    (folder / "pdf" / "image.png").write_bytes(b"\x89PNG\0")
    _, read = made(folder)
    with pytest.raises(NotText):
        read(name="pdf", path="image.png")


def test_a_huge_file_is_refused(folder: Path) -> None:
    write(folder, "pdf")
    (folder / "pdf" / "huge.txt").write_bytes(b"x" * 101)
    _, read = made(folder, limits=SkillLimits(file_bytes=100))
    with pytest.raises(FileTooLarge):
        read(name="pdf", path="huge.txt")


@pytest.mark.parametrize("wrong", [{"start": 0}, {"lines": 0}, {"start": 99}])
def test_a_page_that_is_not_there_is_refused(folder: Path, wrong: dict[str, int]) -> None:
    write(folder, "pdf")
    _, read = made(folder)
    with pytest.raises(InvalidNumber):
        read(name="pdf", path="SKILL.md", **wrong)


# ---- what is refused when the tools are made -------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["missing", "file", "empty"])
def test_a_folder_that_offers_nothing_is_refused(tmp_path: Path, what: str) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SkillFolderInvalid, match=what):
        skills(tmp_path / what)


def test_a_folder_without_a_skill_file_is_refused(folder: Path) -> None:
    (folder / "pdf").mkdir()
    with pytest.raises(SkillInvalid, match=r"there is no SKILL\.md; write one"):
        skills(folder)


def test_a_skill_file_that_is_a_pipe_is_refused_without_waiting_for_it(folder: Path) -> None:
    (folder / "pdf").mkdir()
    os.mkfifo(folder / "pdf" / "SKILL.md")
    with pytest.raises(SkillInvalid, match="a pipe"):
        skills(folder)


def test_a_skill_folder_that_is_a_link_out_is_refused(folder: Path, tmp_path: Path) -> None:
    write(tmp_path / "elsewhere", "pdf")
    (folder / "pdf").symlink_to(tmp_path / "elsewhere" / "pdf")
    with pytest.raises(SkillInvalid, match="leads out"):
        skills(folder)


def test_a_skill_file_that_is_a_link_out_is_refused(folder: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "elsewhere", "pdf")
    (folder / "pdf").mkdir()
    (folder / "pdf" / "SKILL.md").symlink_to(path)
    with pytest.raises(SkillInvalid, match="leads out"):
        skills(folder)


def test_one_name_in_two_folders_is_refused(folder: Path, tmp_path: Path) -> None:
    write(folder, "pdf")
    write(tmp_path / "more", "pdf")
    with pytest.raises(SkillClash, match="rename or remove one"):
        skills(folder, tmp_path / "more")


def test_the_skills_of_two_folders_are_one_list(folder: Path, tmp_path: Path) -> None:
    write(folder, "b")
    write(tmp_path / "more", "a", body="from more")
    load, _ = skills(folder, tmp_path / "more")
    assert load.description.splitlines()[-2:] == ["- a: Does it.", "- b: Does it."]
    assert "from more" in load(name="a")


def test_too_many_skills_are_refused(folder: Path) -> None:
    for name in ("a", "b", "c"):
        write(folder, name)
    with pytest.raises(SkillFolderInvalid, match="more than 2 skills"):
        skills(folder, limits=SkillLimits(skills=2))


def test_a_list_that_is_too_long_is_refused_and_not_cut(folder: Path) -> None:
    write(folder, "a", "x" * 900)
    with pytest.raises(SkillFolderInvalid, match="write shorter descriptions"):
        skills(folder, limits=SkillLimits(list_chars=900))


def test_a_huge_skill_file_is_refused(folder: Path) -> None:
    write(folder, "a", body="x" * 500)
    with pytest.raises(SkillInvalid, match="the limit is 300"):
        skills(folder, limits=SkillLimits(skill_bytes=300))


def test_front_matter_beyond_its_limit_is_refused(folder: Path) -> None:
    write(folder, "a", "x" * 500)
    with pytest.raises(SkillInvalid, match="too long"):
        skills(folder, limits=SkillLimits(front_bytes=300))


@pytest.mark.parametrize("given", [(), (None,), (b"skills",)])
def test_what_names_no_folder_is_refused(given: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidArgument):
        skills(*given)


def test_limits_of_another_kind_are_refused(folder: Path) -> None:
    write(folder, "a")
    limits: Any = {"skills": 3}
    with pytest.raises(InvalidArgument):
        skills(folder, limits=limits)


def test_a_limit_is_a_whole_number_above_zero() -> None:
    with pytest.raises(InvalidNumber):
        SkillLimits(skills=0)

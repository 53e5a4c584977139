"""The front matter of a SKILL.md is read strictly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.every import every

from holdfast.toolkits.skills import MAX_DESCRIPTION, FrontMatter, SkillInvalid, parse_front_matter


def front(fields: str, name: str = "pdf") -> FrontMatter:
    return parse_front_matter(f"---\n{fields}\n---\nbody".encode(), "skills/pdf/SKILL.md", name)


def described(value: str) -> str:
    return front(f"name: pdf\ndescription: {value}").description


@every(
    ("value", "text"),
    [
        ("Fills in forms.", "Fills in forms."),
        ("  spaces   inside  ", "spaces inside"),
        ("on two\n  lines", "on two lines"),
        (">\n  folded\n\n  text", "folded text"),
        ("|-\n  as it\n  stands", "as it stands"),
        ('"with: a colon # and \\"quotes\\""', 'with: a colon # and "quotes"'),
        ("'it''s one'", "it's one"),
        ("a:b and http://x/#y", "a:b and http://x/#y"),
        ("Größe \U0001f469\u200d\U0001f680", "Größe \U0001f469\u200d\U0001f680"),
    ],
)
def test_a_description_is_one_line_of_text_however_it_is_written(value: str, text: str) -> None:
    assert described(value) == text


@every(
    "value",
    [
        "",
        "~",
        "null",
        '""',
        ">",
        "a: b",
        "ends with:",
        "a # comment",
        "[a, b]",
        "{a: b}",
        "&anchor a",
        "*alias",
        "!!str a",
        "- a",
        "@a",
        "\n  - a list",
        "\n- a list",
        "\n\ttabs",
        '"open',
        '"a" b',
        '"a\n  b"',
        "'open",
        "'a' b'",
        "'",
        "a\n\tb",
        "\u202eturned",
        "bell\x07",
    ],
)
def test_what_may_mean_something_else_is_refused_and_not_guessed_at(value: str) -> None:
    with pytest.raises(SkillInvalid):
        described(value)


def test_an_error_says_where_and_what_to_do() -> None:
    with pytest.raises(SkillInvalid, match=r"skills/pdf/SKILL\.md.*line 3: .*put the text in double quotes"):
        described("a: b")


def test_a_description_that_is_too_long_is_refused() -> None:
    assert len(described("x" * MAX_DESCRIPTION)) == MAX_DESCRIPTION
    with pytest.raises(SkillInvalid, match="the limit is 1,024"):
        described("x" * (MAX_DESCRIPTION + 1))


@every("name", ["PDF", "pdf_forms", "-pdf", "pdf-", "a--b", "a b", "../pdf", "x" * 65, "pdf/a", "é"])
def test_a_name_has_small_letters_digits_and_dashes(name: str) -> None:
    with pytest.raises(SkillInvalid, match="its name"):
        front(f'name: "{name}"\ndescription: d', name)


def test_a_name_is_that_of_its_folder() -> None:
    with pytest.raises(SkillInvalid, match="its name is 'pdf', that of its folder is 'docx'"):
        front("name: pdf\ndescription: d", "docx")


def test_other_fields_are_not_read() -> None:
    more = "license: MIT\nallowed-tools:\n- Bash\n- Read\nmetadata:\n  a: [1, {b: *c}]\n# a comment\n"
    assert front(f"{more}name: pdf\ndescription: d").description == "d"


def test_a_field_that_is_there_twice_is_refused() -> None:
    with pytest.raises(SkillInvalid, match="line 4: the field 'name' is there twice"):
        front("name: pdf\ndescription: d\nname: pdf")


@pytest.mark.parametrize("field", ["name", "description"])
def test_both_fields_must_be_there(field: str) -> None:
    fields = {"name": "pdf", "description": "d"}
    del fields[field]
    with pytest.raises(SkillInvalid, match=f"no field '{field}'"):
        front("\n".join(f"{name}: {value}" for name, value in fields.items()))


@pytest.mark.parametrize(
    "data",
    [b"", b"# A title\n", b"---\nname: pdf\ndescription: d\n", b" ---\nname: pdf\n---\n", b"----\nname: pdf\n----\n"],
)
def test_a_file_without_front_matter_is_refused(data: bytes) -> None:
    with pytest.raises(SkillInvalid, match="two lines of '---'"):
        parse_front_matter(data, "p", "pdf")


def test_the_body_begins_behind_the_front_matter_whatever_ends_its_lines() -> None:
    data = b"\xef\xbb\xbf---\r\nname: pdf\r\ndescription: d\r\n---\r\nbody\r\n---\r\n"
    assert data[parse_front_matter(data, "p", "pdf").size :] == b"body\r\n---\r\n"


def test_front_matter_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(SkillInvalid, match="not UTF-8"):
        parse_front_matter(b"---\nname: pdf\ndescription: \xff\n---\n", "p", "pdf")


@given(st.text() | st.text(alphabet="-:#'\">|\n\t nameds", max_size=60))
def test_whatever_stands_there_is_read_or_refused(fields: str) -> None:
    data = f"---\n{fields}\n---\n".encode("utf-8", "surrogatepass")
    try:
        found = parse_front_matter(data, "p", "pdf")
    except SkillInvalid:
        return
    assert found.name == "pdf"
    assert "\n" not in found.description

"""`holdfast --profile NAME` and `holdfast profiles`: an option goes before the environment, that before the profile."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.profiles import Profile, Profiles, apply_assignments

if TYPE_CHECKING:
    from pathlib import Path

    from tests.behaviour.shell import Shell
    from tests.programs import Done

CANARY = "canary-5f0c2e8b71d94a36"
AGENT = """
import os
import holdfast as hf
from holdfast.testing import ScriptedModel

def said(request):
    return "yes" if os.environ.get("SOME_API_KEY") == os.environ.get("MINE") else "no"

agent = hf.Agent("keyed", model=ScriptedModel(said))
"""


def profile(shell: Shell, name: str, *changes: str) -> None:
    """As `profiles set` makes it, without a process of its own."""
    folder = str(shell.folder)
    Profiles(shell.folder / "profiles").change(
        name, lambda found: apply_assignments(name, found or Profile(), changes, folder)
    )


def sessions(shell: Shell, store: str) -> list[str]:
    path = shell.folder / store
    if not path.exists():
        return []
    return [line["id"] for line in json.loads(shell("ps", "-a", "--json", "--store", path).stdout)]


def refused(done: Done, word: str, code: int = 2) -> None:
    assert done.returncode == code
    assert word in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr


# ---- what a profile gives --------------------------------------------------------------------------------------------


def test_the_store_of_a_profile_is_used_from_any_folder(shell: Shell) -> None:
    profile(shell, "work", "store=work.db")
    elsewhere = shell.at(shell.folder / "below")
    elsewhere.folder.mkdir()
    done = elsewhere("--profile", "work", "run", "../agents.py:echo", "hello", "--as", "s")
    assert done.returncode == 0, done.stderr
    assert sessions(shell, "work.db") == ["s"]
    assert not (elsewhere.folder / ".holdfast" / "holdfast.db").exists()


def test_the_environment_goes_before_the_profile(shell: Shell) -> None:
    profile(shell, "work", "store=work.db")
    shell("--profile", "work", "run", "agents.py:echo", "hello", "--as", "s", HOLDFAST_STORE="env.db")
    assert (sessions(shell, "env.db"), sessions(shell, "work.db")) == (["s"], [])


def test_an_option_goes_before_the_environment_and_the_profile(shell: Shell) -> None:
    profile(shell, "work", "store=work.db", "output=json")
    arguments = ("run", "agents.py:echo", "hello", "--as", "s", "--store", "own.db", "-o", "text")
    done = shell("--profile", "work", *arguments, HOLDFAST_STORE="env.db")
    assert done.stdout == "you said hello\n"
    assert sessions(shell, "own.db") == ["s"]


def test_without_a_profile_everything_is_as_ever(shell: Shell) -> None:
    profile(shell, "work", "store=work.db")
    shell("run", "agents.py:echo", "hello", "--as", "s")
    assert sessions(shell, ".holdfast/holdfast.db") == ["s"]


def test_a_profile_gives_the_agent_so_that_the_prompt_alone_is_enough(shell: Shell) -> None:
    profile(shell, "work", "agent=agents.py:echo")
    assert shell("--profile", "work", "run", "hello").stdout == "you said hello\n"
    assert shell("--profile", "work", "chat", stdin="hello\n").stdout == "you said hello\n"


def test_an_agent_that_is_named_goes_before_that_of_the_profile(shell: Shell) -> None:
    profile(shell, "work", "agent=agents.py:asks")
    assert shell("--profile", "work", "run", "agents.py:echo", "hello").stdout == "you said hello\n"


def test_without_an_agent_from_anywhere_the_prompt_is_missing(shell: Shell) -> None:
    profile(shell, "work", "store=work.db")
    refused(shell("--profile", "work", "run", "agents.py:echo"), "prompt is missing")
    assert shell("--profile", "work", "run").returncode == 2


def test_a_profile_gives_the_form_of_the_answer(shell: Shell) -> None:
    profile(shell, "work", "output=json")
    told = json.loads(shell("--profile", "work", "run", "agents.py:echo", "hello").stdout)
    assert told["text"] == "you said hello"


def test_a_profile_gives_the_deadline_of_turns(shell: Shell) -> None:
    profile(shell, "work", "deadline=0.3")
    done = shell("--profile", "work", "run", "agents.py:slow", "hello")
    assert done.returncode == 5, done.stderr


def test_a_profile_gives_the_model_to_be_tested(shell: Shell) -> None:
    profile(shell, "work", "model=nobody:knows")
    refused(shell("--profile", "work", "models", "test"), "nobody:knows")


def test_a_profile_gives_prices(shell: Shell) -> None:
    (shell.folder / "priced.py").write_text(
        "import holdfast as hf\n"
        "from holdfast.messages import Usage\n"
        "from holdfast.testing import ScriptedModel, reply\n"
        "model = ScriptedModel([reply('hi', usage=Usage(input=1_000_000, output=1_000_000))])\n"
        "agent = hf.Agent('priced', model=model)\n",
        encoding="utf-8",
    )
    profile(shell, "work", "price.scripted:*=3,15")
    told = json.loads(shell("--profile", "work", "run", "priced.py", "hello", "-o", "json").stdout)
    assert told["cost"] == pytest.approx(18.0)


# ---- which one -------------------------------------------------------------------------------------------------------


def test_the_profile_may_be_named_by_the_environment(shell: Shell) -> None:
    profile(shell, "work", "output=json")
    assert shell("run", "agents.py:echo", "hello", HOLDFAST_PROFILE="work").stdout.startswith("{")


def test_the_default_is_used_where_none_is_named(shell: Shell) -> None:
    profile(shell, "work", "output=json")
    profile(shell, "home", "output=text")
    assert shell("profiles", "default", "work").returncode == 0
    assert shell("profiles", "default").stdout == "work\n"
    assert shell("run", "agents.py:echo", "hello").stdout.startswith("{")
    assert shell("--profile", "home", "run", "agents.py:echo", "hello").stdout == "you said hello\n"
    shell("profiles", "default", "--none")
    assert shell("run", "agents.py:echo", "hello").stdout == "you said hello\n"


def test_where_nothing_was_asked_for_an_account_without_a_home_is_no_error(shell: Shell) -> None:
    done = shell("run", "agents.py:echo", "hello", HOLDFAST_PROFILES="~nobody-of-this-name/x")
    assert done.stdout == "you said hello\n"
    refused(shell("--profile", "x", "ps", HOLDFAST_PROFILES="~nobody-of-this-name/x"), "HOLDFAST_PROFILES")


def test_a_profile_that_is_not_there_is_refused(shell: Shell) -> None:
    profile(shell, "work", "output=json")
    refused(shell("--profile", "wrok", "ps"), "there are work")


@pytest.mark.parametrize("name", ["..", "a/b", "x" * 300])
def test_a_name_that_leads_elsewhere_is_refused(shell: Shell, name: str) -> None:
    refused(shell("--profile", name, "ps"), "profile")
    refused(shell("profiles", "set", name, "store=a.db"), "profile")
    refused(shell("profiles", "rm", name), "profile")


def test_a_broken_profile_stops_commands_but_not_those_that_mend_it(shell: Shell) -> None:
    profile(shell, "work", "output=json")
    shell("profiles", "default", "work")
    (shell.folder / "profiles" / "work.json").write_text('{"colour": 1}', encoding="utf-8")
    refused(shell("ps"), "colour")
    [line] = json.loads(shell("profiles", "--json").stdout)
    assert (line["name"], line["profile"]) == ("work", None)
    assert "colour" in line["error"]
    assert shell("profiles", "rm", "work").returncode == 0
    assert "no store" in shell("ps").stderr


# ---- looking and changing --------------------------------------------------------------------------------------------


def test_what_show_prints_makes_the_same_profile_again(shell: Shell) -> None:
    changes = ["store=/a.db", "output=json", "deadline=30", "price.a:b=3,15,0.3", "secret.KEY=env:MINE"]
    assert shell("profiles", "set", "work", *changes).returncode == 0
    assert shell("profiles", "show", "work").stdout.splitlines() == changes
    assert shell("--profile", "work", "profiles", "show").stdout.splitlines() == changes


def test_fields_that_are_not_named_stay_as_they_are(shell: Shell) -> None:
    profile(shell, "work", "store=a.db", "output=json")
    assert shell("profiles", "set", "work", "output=", "deadline=5").returncode == 0
    assert json.loads(shell("profiles", "show", "work", "--json").stdout) == {
        "deadline": 5.0,
        "store": str(shell.folder / "a.db"),
    }


def test_profiles_are_listed(shell: Shell) -> None:
    assert "no profiles" in shell("profiles").stdout
    profile(shell, "work", "store=/a.db")
    profile(shell, "home", "model=a:b")
    shell("profiles", "default", "home")
    assert [line.split() for line in shell("profiles").stdout.splitlines()] == [
        ["PROFILE", "DEFAULT", "SAYS"],
        ["home", "yes", "model=a:b"],
        ["work", "-", "store=/a.db"],
    ]


def test_show_without_a_profile_in_use_is_refused(shell: Shell) -> None:
    refused(shell("profiles", "show"), "name one")


# ---- secrets ---------------------------------------------------------------------------------------------------------


def files(folder: Path) -> list[str]:
    return [str(path) for path in folder.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]


def test_a_secret_reaches_the_process_and_no_file(shell: Shell) -> None:
    (shell.folder / "keyed.py").write_text(AGENT, encoding="utf-8")
    profile(shell, "work", "secret.SOME_API_KEY=env:MINE", "output=json")
    done = shell("--profile", "work", "run", "keyed.py", "hello", MINE=CANARY)
    assert json.loads(done.stdout)["text"] == "yes"
    assert CANARY not in done.stdout + done.stderr
    assert files(shell.folder) == []


def test_a_variable_that_is_set_goes_before_the_profile(shell: Shell) -> None:
    (shell.folder / "keyed.py").write_text(AGENT, encoding="utf-8")
    profile(shell, "work", "secret.SOME_API_KEY=env:MINE")
    done = shell("--profile", "work", "run", "keyed.py", "hello", MINE=CANARY, SOME_API_KEY="another")
    assert done.stdout == "no\n"


def test_a_process_in_the_background_gets_the_secret_too(shell: Shell) -> None:
    (shell.folder / "keyed.py").write_text(AGENT, encoding="utf-8")
    profile(shell, "work", "secret.SOME_API_KEY=env:MINE", "store=work.db")
    shell("--profile", "work", "run", "keyed.py", "hello", "--as", "s", "--detach", MINE=CANARY)

    def ended() -> Any:
        lines = json.loads(shell("--profile", "work", "ps", "-a", "--json").stdout)
        return [line["status"] for line in lines] == ["completed"]

    shell.until(ended)
    assert "yes" in shell("--profile", "work", "logs", "s").stdout
    assert files(shell.folder) == []


def test_a_secret_that_is_missing_is_named_before_anything_is_done(shell: Shell) -> None:
    profile(shell, "work", "secret.SOME_API_KEY=env:MINE", "store=work.db")
    refused(shell("--profile", "work", "run", "agents.py:echo", "hello"), "env:MINE")
    assert not (shell.folder / "work.db").exists()


def test_commands_that_ask_no_model_need_no_secret(shell: Shell) -> None:
    shell("run", "agents.py:echo", "hello", "--as", "s")
    profile(shell, "work", "secret.SOME_API_KEY=env:MINE")
    assert shell("--profile", "work", "ps", "-a").returncode == 0


def test_a_secret_is_not_taken_from_what_another_has_set(shell: Shell) -> None:
    profile(shell, "work", "secret.FIRST=env:MINE", "secret.SECOND=env:FIRST")
    refused(shell("--profile", "work", "run", "agents.py:echo", "hello", MINE=CANARY), "env:FIRST")


def test_the_list_of_models_tells_what_is_missing_and_goes_on(shell: Shell) -> None:
    profile(shell, "work", "secret.OPENAI_API_KEY=env:MINE")
    bare = shell("--profile", "work", "models", OPENAI_API_KEY="")
    assert (bare.returncode, "env:MINE" in bare.stderr) == (0, True)
    done = shell("--profile", "work", "models", OPENAI_API_KEY="", MINE=CANARY)
    assert "OPENAI_API_KEY is set" in done.stdout
    assert CANARY not in done.stdout


def test_a_key_is_refused_and_not_repeated(shell: Shell) -> None:
    key = "sk-ant-api03-abcdefgh12345678"
    for change in (f"secret.KEY={key}", f"api_key={key}", key):
        done = shell("profiles", "set", "work", change)
        assert done.returncode == 2
        assert key not in done.stderr + done.stdout
    assert shell("profiles", "--json").stdout == "[]\n"

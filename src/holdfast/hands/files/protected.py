"""The one list of protected names, for the file tools and the shell: other programs act on what these files say. Pure.

A rule is a path of one or more names, each with ``*`` and ``?``. It holds at every depth, for the thing itself and for
all that is below it. Names are compared as the most lenient file system would: without case, without characters that
nobody sees, and without what Windows drops at the end.

The file tools refuse every path that matches a rule. The shell keeps a name only where it can put something in its
place beforehand, so a pattern is listed together with the names that programs look for.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Final

from holdfast.errors import InvalidArgument
from holdfast.hands.files.globs import match_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

REPOSITORIES: Final = "*.git"
"""The rule that stands for repositories; without it, they can be made and written."""
RULES: Final[tuple[str, ...]] = (
    # Version control: hooks and configuration run programs. A `.git` file points to a directory that does, and a
    # directory with a HEAD is taken for a repository without a working tree.
    *(".git", "*.git", "git~*", "HEAD", ".gitconfig", ".gitmodules", ".config/git", ".hg", ".hgrc", ".svn", ".jj"),
    *(".bzr", ".husky", ".pre-commit-config.yaml", "lefthook.yml", "lefthook.yaml", "lefthook.y*ml", ".lefthook.yml"),
    *(".lefthook*",),
    # What a shell reads when it starts, and what it reads on entering a directory.
    *(".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".bash_*"),
    *(".bashrc", ".profile", ".zshrc", ".zshenv", ".zprofile", ".zlogin", ".zlogout", ".kshrc", ".mkshrc"),
    *(".cshrc", ".tcshrc", ".login", ".logout", ".inputrc", ".envrc", ".direnv", ".config/fish", ".config/direnv"),
    *(".xinitrc", ".xprofile", ".xsession*", ".xsessionrc", ".pam_environment", ".config/environment.d"),
    *(".config/autostart", ".config/systemd", ".local/bin"),
    # What other programs read when they start, and run.
    *(".ssh", ".gnupg", ".netrc", ".npmrc", ".yarnrc", ".yarnrc.yml", ".pypirc", "pip.conf", ".condarc", ".ripgreprc"),
    *(".vimrc", ".gvimrc", ".exrc", ".nvimrc", ".nvim.lua", ".emacs", ".emacs.d", ".dir-locals.el", ".config/nvim"),
    *(".gdbinit", ".lldbinit", ".pdbrc", ".pythonrc", ".cargo/config", ".cargo/config.toml", ".cargo/config*"),
    *(".vscode", ".idea", ".zed", ".fleet", ".devcontainer", ".devcontainer.json"),
    # What runs elsewhere, with the keys of others.
    *(".github/workflows", ".github/actions", ".github/dependabot.yml", ".github/dependabot.yaml", "CODEOWNERS"),
    *(".gitea", ".forgejo", ".gitlab-ci.yml", ".gitlab", ".circleci", ".travis.yml", ".drone.yml", ".woodpecker"),
    *(".woodpecker.yml", ".woodpecker*", ".buildkite", "Jenkinsfile", "azure-pipelines.yml"),
    *("bitbucket-pipelines.yml", ".teamcity"),
    # What tells agents what they may do, and what they are told before anybody speaks.
    *("AGENTS.md", "AGENTS.*.md", "CLAUDE.md", "CLAUDE.local.md", "CLAUDE.*.md", "GEMINI.md"),
    *(".mcp.json", "mcp.json", ".claude"),
    *(".claude.json", ".codex", ".cursor", ".cursorrules", ".gemini", ".windsurf", ".windsurfrules", ".continue"),
    *(".cline", ".clinerules", ".roo", ".roomodes", ".kiro", ".opencode"),
    *("opencode.json", "opencode.jsonc", "opencode.json*", ".goose", ".goosehints"),
    *(".aider.conf.yml", ".aider*", ".agents", ".amp", ".junie", ".qwen", ".github/copilot-instructions.md"),
    *(".github/copilot-*", ".github/instructions", ".github/agents", ".github/prompts", ".github/chatmodes"),
    *(".holdfast", "holdfast.toml", "holdfast.db", "holdfast.db-*"),
)
"""The rules that hold unless the host takes one away."""

_WILD: Final = frozenset("*?[")
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.~*?\[\]@+-]*[A-Za-z0-9_~*?\[\]@+-]|")
# Code points that file systems ignore when they compare names, beside those of the category Cf.
_IGNORED: Final = (
    *((0x034F, 0x034F), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x3164, 0x3164), (0xFE00, 0xFE0F)),
    *((0xFFA0, 0xFFA0), (0xE0000, 0xE0FFF)),
)


class _Pattern:
    """A pattern that tells most names apart by their beginning and their end."""

    __slots__ = ("_begin", "_end", "_pattern")

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        parts = re.split(r"[*?\[]", pattern)
        self._begin = parts[0]
        self._end = "" if "[" in pattern else parts[-1]

    def matches(self, name: str) -> bool:
        return name.startswith(self._begin) and name.endswith(self._end) and match_name(name, self._pattern)


class Protection:
    """What is protected in one workspace. `above` is where the workspace itself is, as far as rules reach up."""

    __slots__ = ("_above", "_ends", "_exact", "_longer", "_patterns", "literals", "repositories")

    def __init__(self, rules: Collection[str], above: Sequence[str] = ()) -> None:
        self._above = tuple(folded(part) for part in above)
        self._exact: dict[str, str] = {}
        self._patterns: list[tuple[_Pattern, str]] = []
        self._longer: list[tuple[tuple[str, ...], str]] = []
        self.repositories: Final = REPOSITORIES in rules
        """Whether every directory that git takes for a repository is protected, whatever it is called."""
        literals: list[tuple[str, ...]] = []
        for rule in rules:
            parts = tuple(rule.split("/"))
            plain = tuple(map(folded, parts))
            if len(parts) > 1:
                self._longer.append((plain, rule))
            elif _WILD.intersection(rule):
                self._patterns.append((_Pattern(plain[0]), rule))
            else:
                self._exact.setdefault(plain[0], rule)
            if not _WILD.intersection(rule):
                literals += (parts[size:] for size in range(len(parts)) if self._above_ends(plain[:size]))
        self._ends = tuple(_Pattern(plain[-1]) for plain, _ in self._longer)
        self.literals: Final = tuple(dict.fromkeys(literals))
        """The paths at the top of the workspace that rules without a pattern name."""

    def rule_for(self, parts: Sequence[str]) -> str | None:
        """The rule that keeps this path from being written."""
        names = tuple(map(folded, parts))
        return next((rule for name in names if (rule := self._rule_for_name(name))), None) or self._longer_rule(names)

    def rule_at(self, folder: Sequence[str], name: str) -> str | None:
        """The rule for `name` itself, in a folder that no rule holds for."""
        plain = folded(name)
        rule = self._rule_for_name(plain)
        if rule is None and self.depends_on_folder(name):
            return self._longer_rule((*map(folded, folder), plain))
        return rule

    def depends_on_folder(self, name: str) -> bool:
        """Whether there may be a rule for `name` in one folder and none in another."""
        plain = folded(name)
        return any(end.matches(plain) for end in self._ends)

    def _rule_for_name(self, name: str) -> str | None:
        found = self._exact.get(name)
        return found or next((rule for pattern, rule in self._patterns if pattern.matches(name)), None)

    def _longer_rule(self, parts: tuple[str, ...]) -> str | None:
        names = (*self._above, *parts)
        return next((name for rule, name in self._longer if _holds(rule, names, len(self._above))), None)

    def _above_ends(self, names: tuple[str, ...]) -> bool:
        return not names or self._above[-len(names) :] == names


def protection(protect: Iterable[str] = (), unprotect: Iterable[str] = (), above: Sequence[str] = ()) -> Protection:
    """The rules of old and those that the host adds, without those that it takes away."""
    added, taken = _names("protect", protect), _names("unprotect", unprotect)
    for name in taken:
        if name not in RULES:
            raise InvalidArgument("unprotect", name, "one of holdfast.hands.files.RULES")
    # A pattern is taken away together with the names that stand beside it in the list.
    kept = [rule for rule in RULES if not any(rule == name or match_name(rule, name) for name in taken)]
    return Protection((*kept, *added), above)


def folded(name: str) -> str:
    """A name as the most lenient file system compares it."""
    if _PLAIN.fullmatch(name):  # nearly all names of nearly all workspaces
        return name.lower()
    plain = unicodedata.normalize("NFKC", name).casefold()
    seen = "".join(char for char in plain if not _ignored(char))
    # What follows a colon is a stream of the same file on Windows, and spaces and dots at the end mean nothing there.
    return unicodedata.normalize("NFKC", seen).partition(":")[0].rstrip(" .")


def _ignored(char: str) -> bool:
    code = ord(char)
    return unicodedata.category(char) in {"Cf", "Cc"} or any(low <= code <= high for low, high in _IGNORED)


def _holds(rule: tuple[str, ...], names: Sequence[str], above: int) -> bool:
    size = len(rule)
    # A match that ends above the workspace is the host's own choice of a place.
    return any(
        all(match_name(name, pattern) for name, pattern in zip(names[at : at + size], rule, strict=True))
        for at in range(max(above - size + 1, 0), len(names) - size + 1)
    )


def _names(what: str, given: Iterable[str]) -> tuple[str, ...]:
    wanted = "a sequence of names such as ('.env', 'deploy/keys')"
    if isinstance(given, str):
        raise InvalidArgument(what, given, wanted)
    names = tuple(given)
    for name in names:
        if type(name) is not str or not all(folded(part) for part in name.split("/")):
            raise InvalidArgument(what, name, wanted)
    return names

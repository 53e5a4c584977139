"""Names that are never written, also where nothing is there yet: others act on what these files say. Pure.

A rule is a path of one or more names, each with ``*`` and ``?``. It holds at every depth, for the thing itself and for
all that is below it. Names are compared as the most lenient file system would: without case, without characters that
nobody sees, and without what Windows drops at the end.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.errors import InvalidArgument
from holdfast.hands.files.globs import match_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

RULES: Final[tuple[str, ...]] = (
    # Version control: hooks and configuration run programs. A `.git` file points to a directory that does, and a
    # directory with a HEAD is taken for a repository without a working tree.
    *("*.git", "git~*", "HEAD", ".gitconfig", ".gitmodules", ".config/git", ".hg", ".hgrc", ".svn", ".jj", ".bzr"),
    *(".husky", ".pre-commit-config.yaml", "lefthook.y*ml", ".lefthook*"),
    # What a shell reads when it starts, and what it reads on entering a directory.
    *(".bashrc", ".bash_*", ".profile", ".zshrc", ".zshenv", ".zprofile", ".zlogin", ".zlogout", ".kshrc", ".mkshrc"),
    *(".cshrc", ".tcshrc", ".login", ".logout", ".inputrc", ".envrc", ".direnv", ".config/fish", ".config/direnv"),
    *(".xinitrc", ".xprofile", ".xsession*", ".xsessionrc", ".pam_environment", ".config/environment.d"),
    *(".config/autostart", ".config/systemd", ".local/bin"),
    # What other programs read when they start, and run.
    *(".ssh", ".gnupg", ".netrc", ".npmrc", ".yarnrc", ".yarnrc.yml", ".pypirc", "pip.conf", ".condarc", ".ripgreprc"),
    *(".vimrc", ".gvimrc", ".exrc", ".nvimrc", ".nvim.lua", ".emacs", ".emacs.d", ".dir-locals.el", ".config/nvim"),
    *(".gdbinit", ".lldbinit", ".pdbrc", ".pythonrc", ".cargo/config*", ".vscode", ".idea", ".zed", ".fleet"),
    *(".devcontainer", ".devcontainer.json"),
    # What runs elsewhere, with the keys of others.
    *(".github/workflows", ".github/actions", ".gitea", ".forgejo", ".gitlab-ci.yml", ".gitlab", ".circleci"),
    *(".travis.yml", ".drone.yml", ".woodpecker*", ".buildkite", "Jenkinsfile", "azure-pipelines.yml"),
    *("bitbucket-pipelines.yml", ".teamcity"),
    # What tells agents what they may do, and what they are told before anybody speaks.
    *("AGENTS.md", "AGENTS.*.md", "CLAUDE.md", "CLAUDE.*.md", "GEMINI.md", ".mcp.json", "mcp.json", ".claude"),
    *(".claude.json", ".codex", ".cursor", ".cursorrules", ".gemini", ".windsurf", ".windsurfrules", ".continue"),
    *(".cline", ".clinerules", ".roo", ".roomodes", ".kiro", ".opencode", "opencode.json*", ".goose", ".goosehints"),
    *(".aider*", ".agents", ".amp", ".junie", ".qwen", ".github/copilot-*", ".github/instructions", ".github/agents"),
    *(".github/prompts", ".github/chatmodes", ".holdfast", "holdfast.toml", "holdfast.db", "holdfast.db-*"),
)
"""The rules that hold unless the host takes one away."""

# Code points that file systems ignore when they compare names, beside those of the category Cf.
_IGNORED: Final = (
    *((0x034F, 0x034F), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x3164, 0x3164), (0xFE00, 0xFE0F)),
    *((0xFFA0, 0xFFA0), (0xE0000, 0xE0FFF)),
)


@dataclass(frozen=True, slots=True)
class Protection:
    """What is protected in one workspace. `above` is where the workspace itself is, as far as rules reach up."""

    rules: tuple[tuple[str, ...], ...]
    above: tuple[str, ...] = ()

    def rule_for(self, parts: Sequence[str]) -> str | None:
        """The rule that keeps this path from being written."""
        names = (*self.above, *map(folded, parts))
        return next(("/".join(rule) for rule in self.rules if _holds(rule, names, len(self.above))), None)


def protection(protect: Iterable[str] = (), unprotect: Iterable[str] = (), above: Sequence[str] = ()) -> Protection:
    """The rules of old and those that the host adds, without those that it takes away."""
    added, taken = _names("protect", protect), _names("unprotect", unprotect)
    for name in taken:
        if name not in RULES:
            raise InvalidArgument("unprotect", name, "one of holdfast.hands.files.RULES")
    kept = [rule for rule in (*RULES, *added) if rule not in taken]
    return Protection(
        tuple(tuple(folded(part) for part in rule.split("/")) for rule in kept), tuple(folded(part) for part in above)
    )


def folded(name: str) -> str:
    """A name as the most lenient file system compares it."""
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

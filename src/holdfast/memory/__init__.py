"""Memory for people and agents: the handle on one scope, and its mirror in readable files."""

from __future__ import annotations

from holdfast.memory.decisions import MirrorBusy as MirrorBusy
from holdfast.memory.decisions import MirrorReport as MirrorReport
from holdfast.memory.decisions import MirrorTooLarge as MirrorTooLarge
from holdfast.memory.decisions import MirrorUnavailable as MirrorUnavailable
from holdfast.memory.decisions import RefusedFile as RefusedFile
from holdfast.memory.handle import Memory as Memory
from holdfast.memory.mirror import Mirror as Mirror

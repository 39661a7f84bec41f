"""Services, queues, terminals and keys."""

from __future__ import annotations

from aisotools.policy.shell.commands.services import COMMANDS
from tests.policy.shell.commands.verdicts import wrong_effects

EFFECTS = [
    ("docker --debug ps", "read_only"),
    ("docker --context x ps", "remote_action?"),
    ("docker compose ps", "read_only"),
    ("docker compose up", "remote_action?"),
    ("docker run a --help", "remote_action?"),
    ("docker run --help", "read_only"),
    ("tmux ls", "read_only"),
    ("tmux ls ';' kill-server", "local_mutation?"),
    ("screen -ls", "read_only"),
    ("screen -X quit", "local_mutation?"),
    ("squeue", "remote_action?"),
    ("sacct -j 1 -o JobID", "remote_action?"),
    ("qstat -u me", "remote_action?"),
    ("bjobs", "remote_action?"),
    ("condor_q", "remote_action?"),
    ("pbsnodes -a", "remote_action?"),
    ("scontrol show job 1", "remote_action?"),
    ("scontrol version", "read_only"),
    ("sacctmgr show user", "remote_action?"),
    ("mmlsquota", "remote_action?"),
    ("scontrol update job=1", "remote_action?"),
    ("module list", "read_only"),
    ("module load x", "local_mutation?"),
    ("service a status", "read_only"),
    ("service a stop", "local_mutation?"),
    ("openssl sha256 a", "read_only"),
    ("openssl dgst -out x a", "local_mutation?"),
    ("openssl dgst -engine ./x a", "local_mutation?"),
    ("openssl s_client -connect h:443", "remote_action?"),
    ("ssh-keygen -lf a", "read_only"),
    ("ssh-keygen -t rsa", "local_mutation?"),
    ("gpg --list-keys", "read_only"),
    ("gpg -d a", "local_mutation?"),
]


def test_effect_and_certainty() -> None:
    assert wrong_effects(COMMANDS, EFFECTS) == {}

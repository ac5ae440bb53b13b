"""The environment in Harbor: trials of a task with its own solution, which needs no model."""

from __future__ import annotations

import json
import logging
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from harbor.environments.factory import EnvironmentFactory
from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
from harbor.models.trial.paths import TrialPaths

from micabox import Sandbox
from micabox.adapters.harbor import MicaboxEnvironment
from tests.adapters.processes import wait_until_gone
from tests.support import IMAGE
from tests.waiting import limits

PLACE = "micabox.adapters.harbor:MicaboxEnvironment"
ON_HOST = {"backend": "host", "user": "root"}


def make_task(place: Path) -> Path:
    """A task: to write a file."""
    files = {
        "task.toml": f"""
            schema_version = "1.4"
            [task]
            name = "micabox/greet"
            [environment]
            docker_image = "{IMAGE}"
            workdir = "/work"
            cpus = 1
            memory_mb = 256
            network_mode = "no-network"
        """,
        "instruction.md": "Write `hello` into `/work/out`.\n",
        "environment/given": "a file of the task's\n",
        "solution/solve.sh": "#!/bin/sh\ncat given >/logs/agent/given; echo hello >out\n",
        "tests/test.sh": "#!/bin/bash\n"
        "ls /sys/class/net >/logs/verifier/networks\n"
        "[ $(cat /work/out) = hello ] && echo 1 >/logs/verifier/reward.txt\n",
    }
    for name, text in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return place


def test_a_trial_of_the_command_line_is_won_in_a_machine(tmp_path: Path) -> None:
    task = make_task(tmp_path / "task")
    command = ["harbor", "run", "--path", task, "--agent", "oracle", "--env", PLACE, "--yes"]
    command += ["--ek", 'options={"user": "root"}', "--jobs-dir", tmp_path / "jobs"]
    home = os.environ | {"HOME": str(tmp_path), "HARBOR_TELEMETRY": "0", "DO_NOT_TRACK": "1"}
    done = subprocess.run(command, env=home, check=False, capture_output=True, text=True)
    (result,) = (tmp_path / "jobs").glob("*/*/result.json")
    trial = json.loads(result.read_text())
    assert trial["exception_info"] is None, done.stdout + done.stderr
    assert trial["verifier_result"]["rewards"] == {"reward": 1.0}
    assert (result.parent / "agent" / "given").read_text() == "a file of the task's\n"
    assert (result.parent / "verifier" / "networks").read_text() == "lo\n"
    assert not Sandbox.list(all=True)


def make(place: Path, **changes: Any) -> MicaboxEnvironment:
    """An environment as Harbor makes it."""
    (place / "environment").mkdir(exist_ok=True)
    config = EnvironmentConfig(docker_image=changes.pop("docker_image", IMAGE), workdir="/work")
    given: dict[str, Any] = {
        "environment_dir": place / "environment",
        "environment_name": "greet",
        "session_id": "greet__1__env",
        "trial_paths": TrialPaths(place / "trial"),
        "task_env_config": config,
        "logger": logging.getLogger("test"),
        "options": ON_HOST,
        **changes,
    }
    made = EnvironmentFactory.create_environment_from_import_path(PLACE, **given)
    assert isinstance(made, MicaboxEnvironment)
    return made


@pytest.fixture
async def environment(tmp_path: Path) -> AsyncIterator[MicaboxEnvironment]:
    made = make(tmp_path)
    await made.start(force_build=False)
    yield made
    await made.stop(delete=True)


async def test_commands_have_user_directory_environment_and_time(
    environment: MicaboxEnvironment,
) -> None:
    said = await environment.exec("id -un; pwd; echo $A >&2; exit 3", cwd="/tmp", env={"A": "b"})
    assert (said.stdout, said.stderr, said.return_code) == ("root\n/tmp\n", "b\n", 3)
    with environment.with_default_user("www-data"):
        assert (await environment.exec("id -un; pwd")).stdout == "www-data\n/work\n"
    assert (await environment.exec("id -u", user=33)).stdout == "33\n"
    for seconds in limits(1):
        late = await environment.exec("echo begun; sleep 77 & sleep 78", timeout_sec=int(seconds))
        assert late.return_code == 124
        if late.stdout:
            assert late.stdout == "begun\n"
            break
    await wait_until_gone(environment.sandbox, "sleep 77", "sleep 78")


async def test_files_and_directories_are_copied_both_ways(
    environment: MicaboxEnvironment, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "bytes").write_bytes(bytes(range(256)) * 9999)
    (source / "run").write_text("#!/bin/sh\necho ran\n")
    (source / "run").chmod(0o755)
    await environment.upload_dir(source, "/new/place")
    await environment.upload_file(source / "run", "/other/run")
    said = await environment.exec(
        "/new/place/run; /other/run; stat -c %u:%g /other/run; mkfifo /new/place/p"
    )
    assert said.stdout == "ran\nran\n0:0\n"
    await environment.download_dir("/new/place", tmp_path / "back")
    same = ["diff", "--recursive", source, tmp_path / "back"]
    assert subprocess.run(same, check=False).returncode == 0  # noqa: ASYNC221
    await environment.download_file("/new/place/deep/bytes", tmp_path / "deep" / "x")
    assert (tmp_path / "deep" / "x").read_bytes() == bytes(range(256)) * 9999
    # Harbor's own, on top of these.
    await environment.download_dir_with_exclusions(
        source_dir="/new/place", target_dir=tmp_path / "some", exclude=["bytes", "p"]
    )
    assert sorted(path.name for path in (tmp_path / "some").rglob("*")) == ["deep", "run"]
    assert await environment.is_dir("/new/place") and await environment.is_file("/other/run")


async def test_a_directory_s_links_stay_in_it(
    environment: MicaboxEnvironment, tmp_path: Path
) -> None:
    await environment.exec("mkdir /evil; ln -s /etc /evil/out; echo x >/evil/in")
    with pytest.raises(Exception, match=r"absolute|outside"):
        await environment.download_dir("/evil", tmp_path / "evil")
    assert not (tmp_path / "evil" / "out").exists()


async def test_a_stopped_environment_may_stay(tmp_path: Path) -> None:
    environment = make(tmp_path)
    await environment.start(force_build=False)
    await environment.exec("echo kept >/kept")
    name = environment.sandbox.name
    await environment.stop(delete=False)
    (left,) = Sandbox.list()
    assert (left.name, left.state, left.metadata) == (name, "paused", {"harbor": "greet__1__env"})
    with Sandbox.connect(name) as box:
        assert box.files.read("/kept") == "kept\n"
        box.kill()


async def test_allowed_hosts_are_the_sandbox_s(tmp_path: Path) -> None:
    policy = NetworkPolicy(network_mode=NetworkMode.ALLOWLIST, allowed_hosts=["example.com"])
    environment = make(tmp_path, network_policy=policy)
    await environment.start(force_build=False)
    # mica has this policy, whose enforcement is tested there.
    assert environment._network() == {"net_allow": ["example.com"]}
    await environment.stop(delete=True)


def test_tasks_without_an_image_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="builds no Dockerfiles"):
        make(tmp_path, docker_image=None)

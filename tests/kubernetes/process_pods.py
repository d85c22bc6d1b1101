"""Pods as processes: a `kubectl` that starts, stops and replaces the nodes of the manifests on this machine.

The commands of docs/operate/kubernetes.md then run without a Kubernetes cluster. A pod is a supervisor that
runs the node with the arguments of its manifest. Addresses of Services become ports of 127.0.0.1, and volumes
become folders.

As a program: ``kubectl ARGUMENTS`` by a script in PATH, with the state in the folder DLOG_TEST_PODS.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path

from distributedlog.cluster.local.child_processes import environment

PODS = "DLOG_TEST_PODS"
WAIT_S = 90.0


@dataclass(frozen=True, slots=True)
class Pod:
    """A node that can be started again with the same arguments."""

    name: str
    arguments: list[str]
    pages: str
    """The address of ``--http``, or "" for a gateway."""
    hook: str
    """The script that runs before the node stops, or ""."""


class Pods:
    """The pods of one test, in a folder that several programs share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, pod: Pod) -> None:
        """Record a pod and start it."""
        self._file(pod.name, "json").write_text(json.dumps(asdict(pod)))
        self.start(pod.name)

    def pod(self, name: str) -> Pod:
        """Return a pod that was added."""
        return Pod(**json.loads(self._file(name, "json").read_text()))

    def start(self, name: str) -> None:
        """Start the supervisor of a pod, which survives this program."""
        (self.folder / "data" / name).mkdir(parents=True, exist_ok=True)
        subprocess.Popen(
            [sys.executable, "-m", "tests.kubernetes.process_pods", "supervise", name],
            env={**environment(), PODS: str(self.folder)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # or a reader of this program's output would wait for the node
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def supervise(self, name: str) -> None:
        """Run a node until it ends, and record its exit code."""
        self._file(name, "exit").unlink(missing_ok=True)
        arguments = [sys.executable, "-m", "distributedlog.cli.main", *self.pod(name).arguments]
        with self._file(name, "log").open("ab") as log:
            node = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._file(name, "pid").write_text(str(node.pid))
        code = node.wait()
        self._file(name, "exit").write_text(str(code))

    def delete(self, name: str) -> None:
        """Run the hook, end the node with SIGTERM, and start it again, perhaps with a new volume."""
        pod = self.pod(name)
        if pod.hook:
            subprocess.run(["sh", pod.hook], env={**os.environ, "NAME": name}, check=True)
        os.kill(self._pid(name), signal.SIGTERM)
        _until(self._file(name, "exit").exists, f"the end of {name}")
        code = self._file(name, "exit").read_text()
        assert code == "0", f"{name} ended with exit code {code}"
        marker = self._file(name, "pvc-deleted")
        if marker.exists():
            shutil.rmtree(self.folder / "data" / name)
            marker.unlink()
        self._file(name, "pid").unlink()
        self.start(name)

    def delete_volume(self, name: str) -> None:
        """Delete the volume of a pod when the pod has ended."""
        self._file(name, "pvc-deleted").touch()

    def wait(self, name: str, condition: str) -> None:
        """Wait until the node exists ("create"), runs, or answers `/ready` with 200."""
        _until(self._file(name, "pid").exists, f"the start of {name}")
        if condition == "condition=Ready":
            address = self.pod(name).pages
            _until(lambda: _status(f"http://{address}/ready") == 200, f"{name} to be ready")
        else:
            assert condition in ("create", "jsonpath={.status.phase}=Running"), condition

    def end(self) -> None:
        """Kill all nodes."""
        for file in self.folder.glob("*.pid"):
            if not file.with_suffix(".exit").exists():
                os.kill(int(file.read_text()), signal.SIGKILL)

    def _file(self, name: str, kind: str) -> Path:
        return self.folder / f"{name}.{kind}"

    def _pid(self, name: str) -> int:
        return int(self._file(name, "pid").read_text())


def _status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def _until(is_done: "object", what: str) -> None:
    assert callable(is_done)
    end = time.monotonic() + WAIT_S
    while not is_done():
        if time.monotonic() > end:
            sys.exit(f"waited {WAIT_S:.0f} s for {what}")
        time.sleep(0.05)


def main(arguments: list[str]) -> None:
    """Do what `kubectl` would do, for the commands of the page."""
    pods = Pods(Path(os.environ[PODS]))
    words = [word for word in arguments if word not in ("-n", "dlog", "--wait=false")]
    values = dict(re.findall(r"--(\w+)=(\S+)", " ".join(words)))
    words = [word for word in words if not word.startswith("--")]
    match words:
        case ["supervise", name]:
            pods.supervise(name)
        case ["apply", *_] | ["get", *_]:
            pass
        case ["delete", "pod", name]:
            pods.delete(name)
        case ["delete", "pvc", claim]:
            pods.delete_volume(claim.removeprefix("data-"))
        case ["wait", pod]:
            pods.wait(pod.removeprefix("pod/"), values["for"])
        case _:
            sys.exit(f"kubectl {arguments}: not expected")


if __name__ == "__main__":
    main(sys.argv[1:])

"""The table of servers, held against the servers themselves: which setting wins, and where they listen if not told.

Each server starts in a network of its own, so that none is in another's way, and what it listens on is read from the
kernel. Needs CARPOOL_SERVERS, folders with the programs (`make servers` installs them), and Linux's `unshare`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from carpool_injector.core import hosts, listening, pods, servers

FOLDERS = os.environ.get("CARPOOL_SERVERS", "")
if not FOLDERS:
    pytest.skip("CARPOOL_SERVERS names no folders with servers", allow_module_level=True)
_PATIENCE = 90  # seconds until a server listens; some load a lot
_LISTENS = "0A"

FILES = {
    "app.py": "async def app(scope, receive, send): pass\ndef wsgi(environ, respond): pass\n",
    "gunicorn_file.py": "bind = '0.0.0.0:8900'\n",
    "hypercorn.toml": 'bind = "0.0.0.0:8900"\n',
    "main.py": "import fastapi\napp = fastapi.FastAPI()\n",
    "web.py": "import flask\napp = flask.Flask('web')\n",
    "manage.py": (
        "import sys\nfrom django.conf import settings\nfrom django.core.management import execute_from_command_line\n"
        "settings.configure(DEBUG=True, SECRET_KEY='s', ROOT_URLCONF='urls', ALLOWED_HOSTS=['*'])\n"
        "execute_from_command_line(sys.argv)\n"
    ),
    "urls.py": "urlpatterns = []\n",
    "server.py": "from sanic import Sanic\napp = Sanic('server')\napp.add_route(print, '/')\n",
    "star.py": "from litestar import Litestar\napp = Litestar([])\n",
    "page.py": "import streamlit\nstreamlit.write('page')\n",
    "show.py": "import gradio\ngradio.Interface(str, 'text', 'text').launch()\n",
    "service.py": (
        "import bentoml\n@bentoml.service\nclass Service:\n"
        "    @bentoml.api\n    def say(self) -> str:\n        return ''\n"
    ),
    "settings.json": '{"debug": false, "parallel_workers": 0}',
    "index.html": "<p>page</p>\n",
}


class Case(NamedTuple):
    """A command line and variables; who reaches the server then, and on which port."""

    words: str
    kind: hosts.Kind
    port: int
    variables: Mapping[str, str] = {}


def case(words: str, kind: hosts.Kind, port: int, **variables: str) -> Case:
    return Case(words, kind, port, variables)


CASES = (
    case("uvicorn app:app", "loopback", 8000),
    case("uvicorn app:app --host 0.0.0.0 --port 8100", "any", 8100),
    case("uvicorn app:app", "any", 8200, UVICORN_HOST="0.0.0.0", UVICORN_PORT="8200"),
    case("uvicorn app:app --port=8100 --host=127.0.0.1", "loopback", 8100, UVICORN_HOST="::", UVICORN_PORT="8200"),
    case("uvicorn app:app --port 8100 --port 8101", "loopback", 8101),
    case("uvicorn app:app", "loopback", 8000, PORT="8300", HOST="0.0.0.0"),
    case("gunicorn app:wsgi", "loopback", 8000),
    case("gunicorn app:wsgi", "any", 8300, PORT="8300"),
    case("gunicorn app:wsgi -b127.0.0.1:8100", "loopback", 8100, PORT="8300"),
    case("gunicorn app:wsgi --bind=:8100", "any", 8100, GUNICORN_CMD_ARGS="--bind=127.0.0.1:8400"),
    case("gunicorn app:wsgi", "any", 8400, GUNICORN_CMD_ARGS="-b 0.0.0.0:8400", PORT="8300"),
    case("gunicorn -c gunicorn_file.py app:wsgi", "any", 8900, PORT="8300"),
    case("gunicorn -c gunicorn_file.py -b 127.0.0.1:8100 app:wsgi", "loopback", 8100),
    case("hypercorn app:app", "loopback", 8000),
    case("hypercorn app:app", "loopback", 8000, PORT="8300"),
    case("hypercorn app:app --bind 0.0.0.0:8100", "any", 8100, PORT="8300"),
    case("hypercorn app:app -b0.0.0.0:8100 -c hypercorn.toml", "any", 8100),
    case("hypercorn app:app --config hypercorn.toml", "any", 8900),
    case("granian --interface asgi app:app", "loopback", 8000, PORT="8300"),
    case("granian --interface asgi app:app --port 8100", "any", 8100, GRANIAN_HOST="0.0.0.0", GRANIAN_PORT="8200"),
    case("daphne app:app", "loopback", 8000, PORT="8300"),
    case("daphne -b 0.0.0.0 -p 8100 app:app", "any", 8100),
    case("waitress-serve app:wsgi", "any", 8080, PORT="8300"),
    case("waitress-serve --host=127.0.0.1 --port=8100 app:wsgi", "loopback", 8100),
    case("waitress-serve --listen=127.0.0.1:8100 app:wsgi", "loopback", 8100),
    case("fastapi run main.py", "any", 8000),
    case("fastapi run main.py --port 8100", "any", 8100, PORT="8300"),
    case("fastapi dev main.py --no-reload", "loopback", 8000),
    case("flask --app web run", "loopback", 5000, PORT="8300"),
    case("flask --app web run", "any", 8200, FLASK_RUN_HOST="0.0.0.0", FLASK_RUN_PORT="8200"),
    case("flask --app web run -h 127.0.0.1 -p 8100", "loopback", 8100, FLASK_RUN_HOST="0.0.0.0"),
    case("python manage.py runserver --noreload", "loopback", 8000, PORT="8300"),
    case("python manage.py runserver --noreload 0.0.0.0:8100", "any", 8100),
    case("python manage.py runserver --noreload 8100", "loopback", 8100),
    case("sanic server.app --single-process", "loopback", 8000, PORT="8300"),
    case("sanic server.app --single-process -H 0.0.0.0 -p 8100", "any", 8100),
    case("litestar --app star:app run", "loopback", 8000, PORT="8300"),
    case("litestar --app star:app run -p 8100", "any", 8100, LITESTAR_HOST="0.0.0.0", LITESTAR_PORT="8200"),
    case("streamlit run page.py --server.headless=true", "any", 8501, PORT="8300"),
    case("streamlit run page.py --server.headless=true --server.port=8100", "loopback", 8100,
         STREAMLIT_SERVER_ADDRESS="127.0.0.1", STREAMLIT_SERVER_PORT="8200"),
    case("python show.py", "loopback", 8200, GRADIO_SERVER_PORT="8200"),
    case("python show.py", "any", 7860, GRADIO_SERVER_NAME="0.0.0.0"),
    case("bentoml serve service:Service", "any", 3000, PORT="8300"),
    case("bentoml serve service:Service -p 8100", "loopback", 8100, BENTOML_HOST="127.0.0.1", BENTOML_PORT="8200"),
    case("mlserver start .", "loopback", 8200, MLSERVER_HTTP_PORT="8200", MLSERVER_HOST="127.0.0.1"),
    case("http-server .", "any", 8300, PORT="8300"),
    case("http-server . -p 8100 -a 127.0.0.1", "loopback", 8100, PORT="8300"),
    case("vite preview --outDir .", "loopback", 4173, PORT="8300"),
    case("vite preview --outDir . --host --port 8100", "any", 8100),
)  # fmt: skip
_SHOWN_OTHERWISE = ("gunicorn -c gunicorn_file.py app:wsgi", "hypercorn app:app --config hypercorn.toml")


def _id(each: Case) -> str:
    return " ".join([each.words, *(f"{name}={value}" for name, value in each.variables.items())])


def _container(each: Case) -> pods.Container:
    env = [{"name": name, "value": value} for name, value in each.variables.items()]
    return pods.Container(name="app", command=tuple(each.words.split()), env=env)


@pytest.mark.parametrize("each", CASES, ids=_id)
def test_the_table_says_what_the_server_does(each: Case, tmp_path: Path) -> None:
    found = listens(each, tmp_path)
    assert (each.kind, each.port) in found
    container = _container(each)
    server = servers.recognise(container)
    assert server is not None
    [reach] = listening.reach(container)
    told = listening.told(server.http, container).setting
    if each.words in _SHOWN_OTHERWISE:
        assert (reach.kind, told) == ("unknown", None), "a file that the injector does not see"
        return
    assert reach.kind == each.kind
    assert told is None or told.port == each.port
    assert told is not None or server.title in ("Django's runserver", "Gradio", "Gunicorn", "Hypercorn", "http-server")


def listens(each: Case, folder: Path) -> set[tuple[hosts.Kind, int]]:
    """Starts the server in a network of its own, and what it listens on."""
    for name, text in FILES.items():
        (folder / name).write_text(text)
    words = each.words.split()
    program = shutil.which(words[0], path=FOLDERS)
    if program is None:
        pytest.skip(f"there is no {words[0]}")
    if words[0] == "python":
        program = _python_of("gradio" if "show.py" in words else "django-admin")
    env = {"PATH": f"{FOLDERS}:{os.environ['PATH']}", "HOME": str(folder), "PYTHONPATH": str(folder), **each.variables}
    start = ["unshare", "-rn", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", program, *words[1:]]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(start, cwd=folder, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        for _ in range(_PATIENCE * 5):
            assert process.poll() is None, (folder / "log").read_text()
            if found := set(_sockets(process.pid)):
                return found
            threading.Event().wait(0.2)
        raise AssertionError((folder / "log").read_text())
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _python_of(program: str) -> str:
    """The interpreter for which a program was installed."""
    found = shutil.which(program, path=FOLDERS)
    if found is None:
        pytest.skip(f"there is no {program}")
    return str(Path(found).parent / "python")


def _sockets(pid: int) -> Iterator[tuple[hosts.Kind, int]]:
    """What is listened on in the network of a process: by whom it is reached, and the port."""
    if os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net"):
        return
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            address, _, port = local.partition(":")
            if state == _LISTENS:
                yield ("any" if set(address) == {"0"} else "loopback"), int(port, 16)

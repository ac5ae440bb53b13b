"""Hostile registries, pulled from by root."""

import base64
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import oci
from attempts import attempt
from images import ESCAPES, FILE, nothing_stored
from world import MEBIBYTE


class Registry:
    """Answers as an attempt says: `answers` has a function of the handler for parts of paths."""

    def __init__(self, world):
        self.asked = []
        self.answers = {}
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                registry.asked.append((self.path, self.headers.get("Authorization")))
                for part, answer in registry.answers.items():
                    if part in self.path:
                        return answer(self)
                return self.say(404, b"{}")

            def say(self, status, body, **headers):
                """A whole answer."""
                self.send_response(status)
                headers.setdefault("Content_Length", str(len(body)))
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.end_headers()
                self.wfile.write(body)

            def endless(self, length=None):
                """An answer without an end."""
                self.send_response(200)
                if length is not None:
                    self.send_header("Content-Length", str(length))
                self.send_header("Content-Type", oci.MANIFEST)
                self.end_headers()
                try:
                    for _ in range(100_000):
                        self.wfile.write(b" " * 65536)
                except OSError:
                    pass
                self.close_connection = True

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.name = f"localhost:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        world.cleanups.append(self.server.shutdown)
        world.settings.write_text(
            "[transfer]\nattempts = 2\nconnect-timeout = 2\nidle-timeout = 2\nlongest-pause = 1\n"
        )

    def serve(self, path):
        """Serves the image in a layout under a tag."""
        layout = oci.Layout(path)
        body = oci.archive(("file", FILE, {"body": b"x" * 1000}))
        self.layer_size = len(body)
        manifest = layout.image([oci.plain(body)])
        for blob in layout.blobs.iterdir():
            data = blob.read_bytes()
            self.answers[f"blobs/sha256:{blob.name}"] = lambda handler, data=data: handler.say(
                200, data
            )
        data = layout.blob_path(manifest["digest"]).read_bytes()
        for name in ("manifests/latest", f"manifests/{manifest['digest']}"):
            self.answers[name] = lambda handler: handler.say(200, data, Content_Type=oci.MANIFEST)
        return oci.digest(body)


def pull(world, registry, **options):
    """Pulls the image."""
    return world.mica("pull", f"{registry.name}/evil:latest", **options).harmless()


@attempt(
    "registry",
    "another layer than the manifest names",
    "refused; nothing is stored",
    "SHA-256 over every blob",
)
def a_layer_that_is_another(world):
    registry = Registry(world)
    layer = registry.serve(world.path("served"))
    data = oci.archive(("file", FILE, {"body": b"y" * 1000}))
    registry.answers[f"blobs/{layer}"] = lambda handler: handler.say(200, data)
    pull(world, registry).refused("digest")
    nothing_stored(world)


@attempt(
    "registry",
    "a manifest, a layer and a token without an end",
    "each refused at its limit",
    "4 MiB a document, the manifest's size for a layer, 1 MiB a token",
)
def bodies_without_an_end(world):
    registry = Registry(world)
    layer = registry.serve(world.path("served"))
    good = dict(registry.answers)
    registry.answers[f"blobs/{layer}"] = lambda handler: handler.endless()
    pull(world, registry).refused().within(200)
    registry.answers = {**good, "manifests/latest": lambda handler: handler.endless()}
    pull(world, registry).refused().within(200)
    registry.answers["manifests/latest"] = lambda handler: handler.endless(1 << 40)
    pull(world, registry).refused().within(200)
    challenge = f'Bearer realm="http://{registry.name}/token",service="x"'
    registry.answers = {
        "token": lambda handler: handler.endless(),
        "manifests": lambda handler: handler.say(401, b"", WWW_Authenticate=challenge),
    }
    pull(world, registry).refused().within(200)
    nothing_stored(world)


@attempt(
    "registry",
    "a layer that stops coming",
    "given up after the timeout",
    "`transfer.idle-timeout`, and attempts that must get further",
)
def a_layer_that_stops(world):
    registry = Registry(world)
    layer = registry.serve(world.path("served"))

    def stop(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", str(registry.layer_size))
        handler.end_headers()
        handler.wfile.write(b"x")
        # Sleep: the registry is silent for longer than a pull waits.
        time.sleep(30)

    registry.answers[f"blobs/{layer}"] = stop
    assert pull(world, registry, seconds=25).refused().seconds < 20
    nothing_stored(world)


@attempt(
    "registry",
    "redirects to a cloud's metadata service, to a file, and in a circle",
    "refused; nothing of it is read",
    "plain HTTP only where allowed, no other scheme, few redirects",
)
def redirects_elsewhere(world):
    for place in ["http://169.254.169.254/latest/", "file:///etc/shadow", None]:
        registry = Registry(world)
        layer = registry.serve(world.path(f"served-{registry.name}"))
        there = place or f"http://{registry.name}/v2/evil/blobs/{layer}"
        registry.answers[f"blobs/{layer}"] = lambda handler, there=there: handler.say(
            307, b"", Location=there
        )
        pull(world, registry).refused()
        assert len(registry.asked) < 100, "round and round"
    nothing_stored(world)


@attempt(
    "registry",
    "a redirect to a place that needs a login",
    "the password stays at home",
    "credentials are for the registry that they were made for",
)
def a_redirect_that_asks_for_the_password(world):
    registry, other = Registry(world), Registry(world)
    layer = registry.serve(world.path("served"))
    docker = world.path("docker")
    docker.mkdir()
    secret = base64.b64encode(b"user:secret").decode()
    auths = {registry.name: {"auth": secret}}
    (docker / "config.json").write_text(json.dumps({"auths": auths}))
    world.environment["DOCKER_CONFIG"] = str(docker)
    wanted = {"WWW_Authenticate": 'Basic realm="x"'}
    inside = dict(registry.answers)

    def guarded(handler):
        if not handler.headers.get("Authorization"):
            return handler.say(401, b"", **wanted)
        if layer in handler.path:
            return handler.say(307, b"", Location=f"http://{other.name}/stolen")
        for part, answer in inside.items():
            if part in handler.path:
                return answer(handler)
        return handler.say(404, b"")

    registry.answers = {"/v2/": guarded}
    other.answers = {"/stolen": lambda handler: handler.say(401, b"", **wanted)}
    pull(world, registry).refused()
    assert any(secret in (asked or "") for _, asked in registry.asked), "no login at all"
    assert other.asked and all(asked is None for _, asked in other.asked), "it got the password"


@attempt(
    "registry",
    "escape sequences in errors, headers and challenges",
    "shown as text, and not much of it",
    "one filter where text leaves mica",
)
def escape_sequences_in_answers(world):
    registry = Registry(world)
    text = json.dumps({"errors": [{"message": ESCAPES * 100}]}).encode()
    for status in (400, 403, 404, 418):
        registry.answers["manifests"] = lambda handler, status=status: handler.say(status, text)
        finished = pull(world, registry, tty=True).refused()
        assert len(finished.output) < 8192, f"{len(finished.output)} bytes"
    challenge = 'Bearer realm="nowhere \t \x7f",service="\x7f"'
    registry.answers["manifests"] = lambda handler: handler.say(
        401, b"", WWW_Authenticate=challenge
    )
    pull(world, registry, tty=True).refused()
    assert world.stored() < MEBIBYTE

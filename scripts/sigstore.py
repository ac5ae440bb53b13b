"""A Fulcio and a Rekor (version 1) on loopback, as far as `cosign sign` asks them, with keys that openssl makes.

The authority takes whatever an identity token claims. The log has each entry alone, as the one of a tree of its own.
"""

import base64
import contextlib
import hashlib
import http.server
import json
import pathlib
import subprocess
import threading
import time
import typing

CONFIG = """\
[req]
distinguished_name = name
x509_extensions = authority
[name]
[authority]
basicConstraints = critical,CA:TRUE
keyUsage = critical,keyCertSign
subjectKeyIdentifier = hash
"""

# What Fulcio says of a key's holder, and of who has vouched for them: once as it is, once in DER.
HOLDER = """\
keyUsage = critical,digitalSignature
extendedKeyUsage = codeSigning
subjectAltName = critical,email:{email}
1.3.6.1.4.1.57264.1.1 = DER:{plain}
1.3.6.1.4.1.57264.1.8 = ASN1:UTF8String:{issuer}
"""


def in_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def canonical(value: object) -> bytes:
    """JSON as the log signs it (RFC 8785): names sorted, no blanks."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def sha256(data: bytes) -> dict[str, str]:
    return {"algorithm": "sha256", "value": hashlib.sha256(data).hexdigest()}


def identity_token(email: str, issuer: str) -> str:
    """A token of OpenID Connect whose signature is none."""
    now = int(time.time())
    claims = {"iss": issuer, "sub": email, "email": email, "email_verified": True}
    parts = [{"alg": "RS256"}, {**claims, "aud": "sigstore", "iat": now, "exp": now + 600}]
    encoded = [base64.urlsafe_b64encode(canonical(part)).rstrip(b"=").decode() for part in parts]
    return ".".join([*encoded, "AA"])


class Services:
    """Both of them; their keys are files below `place`."""

    def __init__(self, place: pathlib.Path, name: str):
        self.place = place / name
        self.place.mkdir()
        self.authority = self.place / "authority.pem"
        self.log = self.place / "log.pub"
        curve = ["-pkeyopt", "ec_paramgen_curve:P-256"]
        (self.place / "config").write_text(CONFIG)
        self.openssl(
            *("req", "-x509", "-newkey", "ec", *curve, "-nodes", "-subj", f"/O={name}/CN={name}"),
            *(
                "-config",
                "config",
                "-days",
                "10",
                "-keyout",
                "authority.key",
                "-out",
                self.authority,
            ),
        )
        self.openssl("genpkey", "-algorithm", "EC", *curve, "-out", "log.key")
        self.openssl("pkey", "-in", "log.key", "-pubout", "-out", self.log)
        der = self.openssl("pkey", "-in", "log.key", "-pubout", "-outform", "DER")
        self.log_id = hashlib.sha256(der).digest()
        self.url = ""

    def openssl(self, *words: object, stdin: bytes = b"") -> bytes:
        command = ["openssl", *(str(word) for word in words)]
        return subprocess.run(
            command, check=True, cwd=self.place, input=stdin, stdout=subprocess.PIPE
        ).stdout

    def signed(self, message: bytes) -> bytes:
        (self.place / "message").write_bytes(message)
        return self.openssl("dgst", "-sha256", "-sign", "log.key", "message")

    def certificate(self, request: dict, token: str) -> dict:
        """Issues a certificate of the key in a request, for who the token claims."""
        claims = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
        (self.place / "key").write_text(request["publicKeyRequest"]["publicKey"]["content"])
        issuer = claims["iss"]
        holder = HOLDER.format(email=claims["email"], plain=issuer.encode().hex(), issuer=issuer)
        (self.place / "holder").write_text(holder)
        pem = self.openssl(
            *("x509", "-new", "-force_pubkey", "key", "-subj", "/", "-days", "1"),
            *("-CA", self.authority, "-CAkey", "authority.key", "-extfile", "holder"),
        )
        chain = [pem.decode(), self.authority.read_text()]
        return {"signedCertificateEmbeddedSct": {"chain": {"certificates": chain}}}

    def noted(self, proposed: dict) -> tuple[str, dict]:
        """Notes an entry. Returns its number and what the log answers."""
        body = canonical(entry(proposed))
        note = {"body": in_base64(body), "integratedTime": int(time.time())}
        note |= {"logID": self.log_id.hex(), "logIndex": 0}
        promise = in_base64(self.signed(canonical(note)))
        root = hashlib.sha256(b"\0" + body)
        head = f"log.example - 7\n1\n{in_base64(root.digest())}\n"
        by = in_base64(self.log_id[:4] + self.signed(head.encode()))
        proof = {"logIndex": 0, "rootHash": root.hexdigest(), "treeSize": 1, "hashes": []}
        proof["checkpoint"] = f"{head}\n\N{EM DASH} log.example {by}\n"
        verification = {"inclusionProof": proof, "signedEntryTimestamp": promise}
        return root.hexdigest(), {**note, "verification": verification}


def entry(proposed: dict) -> dict:
    """What the log keeps of an entry that is proposed to it."""
    if proposed["kind"] == "hashedrekord":
        return proposed
    assert proposed["kind"] == "dsse", proposed
    content = proposed["spec"]["proposedContent"]
    envelope = json.loads(content["envelope"])
    verifiers = content["verifiers"]
    pairs = zip(envelope["signatures"], verifiers, strict=True)
    spec = {
        "envelopeHash": sha256(content["envelope"].encode()),
        "payloadHash": sha256(base64.b64decode(envelope["payload"])),
        "signatures": [{"signature": one["sig"], "verifier": by} for one, by in pairs],
    }
    return {"apiVersion": proposed["apiVersion"], "kind": "dsse", "spec": spec}


@contextlib.contextmanager
def services(place: pathlib.Path, name: str) -> typing.Iterator[Services]:
    """Serves both below one address, `url`."""
    served = Services(place, name)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/api/v2/signingCert":
                token = self.headers["Authorization"].removeprefix("Bearer ")
                self.reply(200, served.certificate(request, token))
            elif self.path == "/api/v1/log/entries":
                number, note = served.noted(request)
                self.reply(201, {number: note}, ETag=number, Location=f"{self.path}/{number}")
            else:
                self.send_error(404)

        def reply(self, status: int, document: dict, **headers: str) -> None:
            self.send_response(status)
            body = json.dumps(document).encode()
            headers |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
            for header, value in headers.items():
                self.send_header(header, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_words: object) -> None:
            pass

    # One request at a time: the files of openssl have one name each.
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        served.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield served
        finally:
            server.shutdown()
            thread.join()

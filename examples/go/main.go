// A client of Micabox, written from docs/protocol.md alone: makes a sandbox and works in it.
package main

import (
	"bytes"
	"crypto/sha256"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand"
	"os"
	"os/exec"
	"strings"
)

func main() {
	log.SetFlags(0)
	mica := flag.String("mica", "mica", "the program")
	backend := flag.String("backend", "auto", "what runs the machine")
	flag.Parse()
	serve := exec.Command(*mica, "serve", "--stdio")
	serve.Stderr = os.Stderr
	stdin, err := serve.StdinPipe()
	check(err)
	stdout, err := serve.StdoutPipe()
	check(err)
	check(serve.Start())
	conn, err := NewConn(stdout, stdin)
	check(err)
	options := map[string]any{"backend": *backend, "user": "root", "rm": true}
	made, err := conn.Ask("sandboxes", map[string]any{"type": "create", "image": flag.Arg(0), "options": options}, Streams{})
	check(err)
	sandbox := &made.Sandboxes[0]

	var out, errors strings.Builder
	code, err := sandbox.Run(Streams{strings.NewReader("a word"), &out, &errors}, "sh", "-c", "cat; pwd >&2; exit 3")
	check(err)
	fmt.Printf("%s: %q, %q, exit code %d\n", sandbox.Record.Name, &out, &errors, code)

	// 100 MB there and back: far more than a window.
	sent, received := sha256.New(), sha256.New()
	data := io.TeeReader(io.LimitReader(rand.New(rand.NewSource(1)), 100e6), sent)
	_, err = sandbox.Run(Streams{data, received, io.Discard}, "cat")
	check(err)
	fmt.Println("100 MB through cat:", bytes.Equal(sent.Sum(nil), received.Sum(nil)))

	file := map[string]any{"type": "write", "path": "/srv/new/file", "existing": "refuse", "mode": 0o640, "parents": true}
	check(sandbox.File(file, strings.NewReader("contents"), io.Discard))
	var read, listed bytes.Buffer
	check(sandbox.File(map[string]any{"type": "read", "path": "/srv/new/file", "offset": 3}, nil, &read))
	check(sandbox.File(map[string]any{"type": "list", "path": "/srv/new", "depth": 1}, nil, &listed))
	fmt.Printf("read %q\nlisted %s\n", &read, Replies(&listed))
	fmt.Println(sandbox.File(file, strings.NewReader("contents"), io.Discard))
	fmt.Println(sandbox.Run(Streams{nil, io.Discard, io.Discard}, "no-such-program"))

	// The sandbox ends with `mica serve`, and that with its stdin.
	check(stdin.Close())
	check(serve.Wait())
	if _, err = sandbox.Dial(); err == nil {
		log.Fatal("the sandbox has an owner still")
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
)

// Sandbox is one that was made, as `mica serve` describes it.
type Sandbox struct {
	Directory string
	Record    struct {
		Name     string
		Defaults map[string]any
	}
}

// Dial connects to the sandbox's owner, through its directory: a socket's address is short.
func (sandbox *Sandbox) Dial() (*Conn, error) {
	directory, err := os.Open(sandbox.Directory)
	if err != nil {
		return nil, err
	}
	defer directory.Close()
	socket, err := net.Dial("unix", fmt.Sprintf("/proc/self/fd/%d/control", directory.Fd()))
	if err != nil {
		return nil, err
	}
	return NewConn(socket, socket)
}

// Run runs a command as the image has it, and returns its exit code.
func (sandbox *Sandbox) Run(streams Streams, argv ...string) (int, error) {
	exec := map[string]any{"argv": argv}
	for _, name := range []string{"env", "workdir", "make_workdir", "user", "confinement"} {
		exec[name] = sandbox.Record.Defaults[name]
	}
	return sandbox.exec(streams, exec)
}

// File performs an operation on files, as root; stdout gets what is read.
func (sandbox *Sandbox) File(operation map[string]any, stdin io.Reader, stdout io.Writer) error {
	words, err := json.Marshal(operation)
	check(err)
	var stderr bytes.Buffer
	code, err := sandbox.exec(Streams{stdin, stdout, &stderr}, map[string]any{
		"argv": []string{"\x00files", string(words)}, "answer_timeout": 300_000,
	})
	if err == nil && code != 0 {
		err = fmt.Errorf("%s %s: exit code %d, %s", operation["type"], operation["path"], code, &stderr)
	}
	return err
}

func (sandbox *Sandbox) exec(streams Streams, exec map[string]any) (int, error) {
	owner, err := sandbox.Dial()
	if err != nil {
		return 0, err
	}
	defer owner.to.(io.Closer).Close()
	exec["type"], exec["stdout"], exec["stderr"] = "exec", "frames", "frames"
	if streams.Stdin != nil {
		exec["stdin"] = "frames"
	}
	exited, err := owner.Ask("exited", exec, streams)
	if err != nil {
		return 0, err
	}
	if signal := exited.Status.Signaled; signal > 0 {
		return 128 + signal, nil
	}
	return exited.Status.Exited, nil
}

// Replies returns all replies in what an operation has written to stdout.
func Replies(stdout *bytes.Buffer) (replies [][]byte) {
	for stdout.Len() >= 4 {
		length := binary.LittleEndian.Uint32(stdout.Next(4))
		replies = append(replies, stdout.Next(int(length)))
	}
	return replies
}

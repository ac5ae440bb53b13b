package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

const (
	preamble            = "MICAOWN\n\x02\x00\x00\x00"
	maxData, maxMessage = 32 << 10, 8 << 20
	// The kinds of frames.
	message, stdin, stdout, stderr = 0, 1, 2, 3
)

// Conn is a connection to `mica serve` or to a sandbox's owner. It makes one request at a time; what is to
// happen at once has connections of its own.
type Conn struct {
	from   *bufio.Reader
	to     io.Writer
	number uint32
}

// Streams are those of a command; its stdin is empty if it is nil.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Message has the fields, of all types of messages from the other side, that this client looks at.
type Message struct {
	Type, Kind, Message, Version string
	Window, Bytes, Code          int
	Status                       struct{ Exited, Signaled int }
	Sandboxes                    []Sandbox
}

// NewConn exchanges preambles.
func NewConn(from io.Reader, to io.Writer) (*Conn, error) {
	conn := &Conn{from: bufio.NewReaderSize(from, 2*maxData), to: to}
	if _, err := io.WriteString(to, preamble); err != nil {
		return nil, err
	}
	theirs := make([]byte, len(preamble))
	if _, err := io.ReadFull(conn.from, theirs); err != nil || string(theirs) != preamble {
		return nil, fmt.Errorf("the other side speaks something else: %q %v", theirs, err)
	}
	return conn, nil
}

// Ask makes a request, and serves its streams until there is a message of type `last`, which is returned.
// Meanwhile it reads stdin as it is granted: that must not wait for an output.
func (conn *Conn) Ask(last string, request any, streams Streams) (Message, error) {
	conn.number++
	number, window, buffer := conn.number, 0, make([]byte, maxData)
	if err := conn.sendMessage(number, request); err != nil {
		return Message{}, err
	}
	for {
		of, kind, body, err := conn.receive()
		if err != nil {
			return Message{}, err
		}
		var said Message
		switch {
		case of != number: // a message without a request
		case kind == stdout:
			err = conn.pass(number, "stdout", streams.Stdout, body)
		case kind == stderr:
			err = conn.pass(number, "stderr", streams.Stderr, body)
		default:
			err = json.Unmarshal(body, &said)
		}
		if err != nil {
			return said, err
		}
		switch said.Type {
		case last:
			return said, nil
		case "failed":
			return said, fmt.Errorf("%s (%s)", said.Message, said.Kind)
		case "started":
			window = said.Window
		case "credit":
			window += said.Bytes
		case "stdin_closed":
			window, streams.Stdin = 0, nil
		}
		for window > 0 && streams.Stdin != nil {
			if len(buffer) > window {
				buffer = buffer[:window]
			}
			count, ended := streams.Stdin.Read(buffer)
			if count > 0 {
				err = conn.send(stdin, number, buffer[:count])
			}
			if ended != nil && err == nil {
				err, streams.Stdin = conn.send(stdin, number, nil), nil
			}
			if err != nil {
				return said, err
			}
			window, buffer = window-count, buffer[:maxData]
		}
	}
}

// Hands bytes of an output on, and grants as many more.
func (conn *Conn) pass(number uint32, stream string, to io.Writer, bytes []byte) error {
	if _, err := to.Write(bytes); err != nil {
		return err
	}
	return conn.sendMessage(number, map[string]any{"type": "credit", "stream": stream, "bytes": len(bytes)})
}

func (conn *Conn) sendMessage(number uint32, it any) error {
	body, err := json.Marshal(it)
	check(err) // a mistake of this program
	return conn.send(message, number, body)
}

func (conn *Conn) send(kind byte, number uint32, body []byte) error {
	frame := binary.LittleEndian.AppendUint32(nil, uint32(5+len(body)))
	frame = binary.LittleEndian.AppendUint32(append(frame, kind), number)
	_, err := conn.to.Write(append(frame, body...))
	return err
}

func (conn *Conn) receive() (number uint32, kind byte, body []byte, err error) {
	var head [9]byte
	if _, err = io.ReadFull(conn.from, head[:]); err != nil {
		return
	}
	length := binary.LittleEndian.Uint32(head[:])
	kind, number = head[4], binary.LittleEndian.Uint32(head[5:])
	if length < 5 || length > 5+maxMessage || kind != message && length > 5+maxData {
		return 0, 0, nil, fmt.Errorf("a frame of kind %d and length %d", kind, length)
	}
	body = make([]byte, length-5)
	_, err = io.ReadFull(conn.from, body)
	return
}

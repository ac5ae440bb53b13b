// A registry in memory, on loopback, that lists what refers to an image: it prints its host and port, and serves until its
// input ends. Debian's registry has no such lists.
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
)

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal("oracle: ", err)
	}
	quiet := registry.Logger(log.New(io.Discard, "", 0))
	server := &http.Server{
		Handler:           registry.New(registry.WithReferrersSupport(true), quiet),
		ReadHeaderTimeout: time.Minute,
	}
	go func() { log.Fatal("oracle: ", server.Serve(listener)) }()
	fmt.Println(listener.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
}

module oracle

go 1.23

require (
	github.com/erofs/go-erofs v0.3.1
	golang.org/x/sys v0.30.0
)

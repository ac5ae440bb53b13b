// Makes an EROFS image of a directory with the writer that containerd and apko use: oracle DIRECTORY IMAGE.
// As in apko, a file with several names becomes as many files.
package main

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/erofs/go-erofs"
	"golang.org/x/sys/unix"
)

func main() {
	if len(os.Args) != 3 {
		fail(fmt.Errorf("usage: %s DIRECTORY IMAGE", os.Args[0]))
	}
	out, err := os.Create(os.Args[2])
	fail(err)
	writer := erofs.Create(out)
	fail(filepath.WalkDir(os.Args[1], func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		return add(writer, path, "/"+strings.TrimPrefix(strings.TrimPrefix(path, os.Args[1]), "/"), info)
	}))
	fail(writer.Close())
	fail(out.Close())
}

func add(writer *erofs.Writer, path, name string, info fs.FileInfo) error {
	var stat unix.Stat_t
	if err := unix.Lstat(path, &stat); err != nil {
		return err
	}
	if err := contents(writer, path, name, info, &stat); err != nil {
		return err
	}
	if info.Mode()&fs.ModeSymlink == 0 {
		if err := writer.Chmod(name, info.Mode()); err != nil {
			return err
		}
	}
	if err := writer.Chown(name, int(stat.Uid), int(stat.Gid)); err != nil {
		return err
	}
	if err := writer.Chtimes(name, info.ModTime(), info.ModTime()); err != nil {
		return err
	}
	return attributes(writer, path, name)
}

func contents(writer *erofs.Writer, path, name string, info fs.FileInfo, stat *unix.Stat_t) error {
	switch info.Mode().Type() {
	case fs.ModeDir:
		return writer.Mkdir(name, info.Mode().Perm())
	case fs.ModeSymlink:
		target, err := os.Readlink(path)
		if err != nil {
			return err
		}
		return writer.Symlink(target, name)
	case 0:
		from, err := os.Open(path)
		if err != nil {
			return err
		}
		defer from.Close()
		to, err := writer.Create(name)
		if err != nil {
			return err
		}
		if _, err := io.Copy(to, from); err != nil {
			return err
		}
		return to.Close()
	default:
		return writer.Mknod(name, uint16(stat.Mode), uint32(stat.Rdev))
	}
}

func attributes(writer *erofs.Writer, path, name string) error {
	names := make([]byte, 64<<10)
	length, err := unix.Llistxattr(path, names)
	if err != nil {
		return err
	}
	for _, attribute := range strings.Split(strings.TrimRight(string(names[:length]), "\x00"), "\x00") {
		if attribute == "" {
			continue
		}
		value := make([]byte, 64<<10)
		length, err := unix.Lgetxattr(path, attribute, value)
		if err != nil {
			return err
		}
		if err := writer.Setxattr(name, attribute, string(value[:length])); err != nil {
			return err
		}
	}
	return nil
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "oracle:", err)
		os.Exit(1)
	}
}

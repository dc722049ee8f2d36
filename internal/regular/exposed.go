// SPDX-License-Identifier: Apache-2.0

package regular

import (
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"strconv"
	"syscall"
)

const othersRead, othersWrite = 0o004, 0o002

// Exposed returns a description of a file that others may read or write, such as "secret.txt
// (owner root, mode 0644)". It returns "" if others may do neither, or there is no file.
func Exposed(path string) string {
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm()&(othersRead|othersWrite) == 0 {
		return ""
	}
	return describe(path, info)
}

// ExposedDir is Exposed for a directory in which others could create files that this process
// will open: others may write to it, or it belongs to a user other than this one and root.
func ExposedDir(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	owner := OwnerOf(info)
	if info.Mode().Perm()&othersWrite == 0 && (owner == os.Geteuid() || owner == 0) {
		return ""
	}
	return describe(path, info)
}

// OwnerOf returns the user id of a file's owner, -1 if it is not known.
func OwnerOf(info fs.FileInfo) int {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(stat.Uid)
	}
	return -1
}

// UserName returns the name of a user id, or its number if it has none.
func UserName(uid int) string {
	id := strconv.Itoa(uid)
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	return id
}

func describe(path string, info fs.FileInfo) string {
	return fmt.Sprintf("%s (owner %s, mode %04o)", path, UserName(OwnerOf(info)), info.Mode().Perm())
}

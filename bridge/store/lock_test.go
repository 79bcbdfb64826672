// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestMain(m *testing.M) {
	if path := os.Getenv("KRPING_TEST_HOLD"); path != "" { // a second process of TestLockOfAnotherProcess
		s, err := Open("file:"+path, Options{})
		fmt.Println(err)
		_, _ = bufio.NewReader(os.Stdin).ReadByte()
		_ = s.Close()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestSecondOpenIsRefused(t *testing.T) {
	path := newFile(t, 4096)
	wantInUse := func(o Options) {
		t.Helper()
		s, err := Open("file:"+path, o)
		if err == nil {
			_ = s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "in use by another volume of this bridge") {
			t.Errorf("%+v: %v", o, err)
		}
	}
	writer := open(t, path, Options{})
	wantInUse(Options{})
	wantInUse(Options{ReadOnly: true})
	if _, err := writer.WriteAt(make([]byte, 512), 0); err != nil {
		t.Error(err)
	}
	wantInUse(Options{}) // the description that wrote was closed, or not: the lock is another one's
	_ = writer.Close()
	a, b := open(t, path, Options{ReadOnly: true}), open(t, path, Options{ReadOnly: true})
	wantInUse(Options{})
	_, _ = a.Close(), b.Close()
	_ = open(t, path, Options{}).Close()
}

func TestLockOfAnotherProcess(t *testing.T) {
	path := newFile(t, 4096)
	other := exec.Command(os.Args[0])
	other.Env = append(os.Environ(), "KRPING_TEST_HOLD="+path)
	stdin, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "<nil>\n" {
		t.Fatalf("the other process: %q, %v", line, err)
	}
	want := fmt.Sprintf("in use by process %d (store.test)", other.Process.Pid)
	if _, err := Open("file:"+path, Options{}); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
	_ = stdin.Close()
	if err := other.Wait(); err != nil {
		t.Error(err)
	}
	_ = open(t, path, Options{}).Close()
}

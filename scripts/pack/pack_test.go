// SPDX-License-Identifier: Apache-2.0

// Package pack tests what `make install` installs and what `make packages` makes.
package pack

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

var packages = []string{"client", "common", "dkms", "target"}

// The packages are made once for all tests: as a fresh clone does it.
func TestMain(m *testing.M) {
	// Not those of `go test`: make's own builds need none of them.
	cmd := exec.Command("make", "-s", "-C", root, "packages")
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "MAKE") || strings.HasPrefix(v, "MFLAGS")
	})
	if out, err := cmd.CombinedOutput(); err != nil {
		fmt.Printf("FAIL: make packages: %v\n%s", err, out)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// run returns what a command prints on its standard output. It runs in the tree's root.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	return runWith(t, nil, name, args...)
}

func runWith(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	var stderr bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stderr = root, append(os.Environ(), env...), &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out, stderr.Bytes())
	}
	return strings.TrimSpace(string(out))
}

// version is the tree's.
func version(t *testing.T) string {
	t.Helper()
	return run(t, "scripts/version")
}

// file returns the path, from the tree's root, of the only file that matches.
func file(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(root, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %v %v, want one file", pattern, found, err)
	}
	rel, err := filepath.Rel(root, found[0])
	if err != nil {
		t.Fatal(err)
	}
	return rel
}

func deb(t *testing.T, name string) string {
	return file(t, "build/packages/krping-"+name+"_*.deb")
}

func rpm(t *testing.T, name string) string {
	return file(t, "build/packages/krping-"+name+"-[0-9]*.rpm")
}

func TestOneVersion(t *testing.T) {
	want := version(t)
	source := "build/packages/deb/debian/krping-dkms/usr/src/rdma_krping-" + want
	got := map[string]string{
		"krpingctl --version":     strings.TrimPrefix(run(t, "build/krpingctl", "--version"), "krpingctl "),
		"krping-bridge --version": strings.TrimPrefix(run(t, "build/krping-bridge", "--version"), "krping-bridge "),
		"krping-bridge version":   strings.TrimPrefix(run(t, "build/krping-bridge", "version"), "krping-bridge "),
		"the module's source":     run(t, "cat", source+"/VERSION"),
		"dkms.conf":               run(t, "sh", "-c", ". "+source+"/dkms.conf; echo $PACKAGE_VERSION"),
	}
	first, _, _ := strings.Cut(run(t, "build/krpingctl", "version"), "\n")
	got["krpingctl version"] = strings.TrimPrefix(first, "krpingctl ")
	for _, p := range packages {
		got[p+".deb"] = run(t, "dpkg-deb", "-f", deb(t, p), "Version")
		got[p+".rpm"] = run(t, "rpm", "-qp", "--qf", "%{VERSION}", rpm(t, p))
	}
	modules, err := filepath.Glob(filepath.Join(root, "build/kmod/*/VERSION"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range modules {
		ko := filepath.Join(filepath.Dir(m), "rdma_krping.ko")
		built, err := os.ReadFile(m)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(ko); err == nil && strings.TrimSpace(string(built)) == want { // else of an older build
			path, err := filepath.Abs(ko)
			if err != nil {
				t.Fatal(err)
			}
			got[ko] = run(t, "/sbin/modinfo", "-F", "version", path)
		}
	}
	for where, v := range got {
		if v != want {
			t.Errorf("%s: %s, want %s", where, v, want)
		}
	}
}

// Versions sort by age, for dpkg and for rpm.
func TestVersionsSort(t *testing.T) {
	versions := []string{"0.1.0", "0.1.0+9.gffffffff", "0.1.0+9.gffffffff.dirty", "0.1.0+10.g00000000", "0.1.1", "0.2.0+1.g12345678", "0.10.0"}
	for i, older := range versions[:len(versions)-1] {
		newer := versions[i+1]
		run(t, "dpkg", "--compare-versions", older, "lt", newer)
		if got := run(t, "rpm", "--eval", fmt.Sprintf(`%%{lua: print(rpm.vercmp("%s", "%s"))}`, older, newer)); got != "-1" {
			t.Errorf("rpm compares %s with %s: %s, want -1", older, newer, got)
		}
	}
}

// The version of a source archive, which has no git, is that of its commit.
func TestVersionOfArchive(t *testing.T) {
	dir := t.TempDir()
	run(t, "sh", "-c", "git archive HEAD scripts | tar -x -C "+dir)
	want := strings.TrimSuffix(version(t), ".dirty")
	got := run(t, dir+"/scripts/version")
	hash := want[strings.LastIndex(want, ".")+1:]
	if !strings.Contains(want, "+") { // a release
		return
	}
	if !strings.HasSuffix(got, "."+hash) {
		t.Errorf("version %s, want one of commit %s", got, hash)
	}
	if len(hash) != len("g")+12 {
		t.Errorf("version %s has the hash %s, want g and 12 digits in every clone", want, hash)
	}
}

// files returns the files below a directory, by their paths from there.
func files(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			all = append(all, strings.TrimPrefix(path, dir))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestInstallAndUninstall(t *testing.T) {
	dir := t.TempDir()
	env := []string{"DESTDIR=" + dir, "PREFIX=/opt/krping"}
	foreign := filepath.Join(dir, "opt/krping/share/man/man8/other.8")
	config := filepath.Join(dir, "etc/krping/krping.yaml")
	for path, text := range map[string]string{foreign: "x", config: "sessions: []\n"} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	runWith(t, env, "scripts/pack/install")
	installed := files(t, dir)
	for _, want := range []string{"bin/krpingctl", "bin/krping-bridge", "lib/systemd/system/krping-agent.service", "lib/udev/rules.d/60-krping.rules", "share/man/man8/krpingctl-agent.8"} {
		if !slices.Contains(installed, "/opt/krping/"+want) {
			t.Errorf("%s is not installed", want)
		}
	}
	command := regexp.MustCompile(`(?m)^Exec\w+=(/\S*krp\S*)`)
	commands := 0
	for _, path := range installed {
		if !strings.HasSuffix(path, ".service") {
			continue
		}
		unit, err := os.ReadFile(dir + path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range command.FindAllStringSubmatch(string(unit), -1) {
			commands++
			if !slices.Contains(installed, m[1]) {
				t.Errorf("%s runs %s, which is not installed", path, m[1])
			}
		}
	}
	if commands < 5 {
		t.Errorf("only %d commands in units", commands)
	}
	if text, err := os.ReadFile(config); err != nil || string(text) != "sessions: []\n" {
		t.Errorf("the configuration was replaced: %q %v", text, err)
	}
	runWith(t, env, "scripts/pack/install", "--uninstall")
	if left, want := files(t, dir), []string{"/etc/krping/krping.yaml", "/opt/krping/share/man/man8/other.8"}; !slices.Equal(left, want) {
		t.Errorf("left: %v, want %v", left, want)
	}
}

// The configuration that is installed first is an example: it declares nothing.
func TestInstalledConfiguration(t *testing.T) {
	dir := t.TempDir()
	runWith(t, []string{"DESTDIR=" + dir}, "scripts/pack/install", "client")
	if said := run(t, "build/krpingctl", "agent", "--check", "--config", dir+"/etc/krping/krping.yaml"); !strings.Contains(said, "sessions: 0") {
		t.Errorf("%q, want no session", said)
	}
}

// Each file of scripts/system is installed by exactly one package.
func TestSystemFilesInPackages(t *testing.T) {
	list, err := os.ReadFile("files")
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(filepath.Join(root, "scripts/system"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if n := strings.Count(string(list), " scripts/system/"+e.Name()+" "); n != 1 && !strings.HasSuffix(e.Name(), ".go") {
			t.Errorf("scripts/system/%s is in scripts/pack/files %d times, want once", e.Name(), n)
		}
	}
}

// debFiles returns the files of a Debian package.
func debFiles(t *testing.T, name string) []string {
	t.Helper()
	var all []string
	for line := range strings.Lines(run(t, "sh", "-c", "dpkg-deb --fsys-tarfile "+deb(t, name)+" | tar -t")) {
		if path := strings.TrimSpace(strings.TrimPrefix(line, ".")); !strings.HasSuffix(path, "/") {
			all = append(all, path)
		}
	}
	return all
}

// No file is in two packages, and both kinds of packages have the same ones.
func TestFilesOfPackages(t *testing.T) {
	owner := map[string]string{}
	debian := regexp.MustCompile(`^/usr/share/(doc/krping-\w+/(changelog|copyright)|lintian/|licenses/)`)
	// The paths that differ by convention.
	plain := strings.NewReplacer("zsh/vendor-completions", "zsh/site-functions", "OPERATING.md.gz", "OPERATING.md")
	for _, p := range packages {
		inDeb, inRPM := map[string]bool{}, map[string]bool{}
		for _, path := range debFiles(t, p) {
			if owner[path] != "" {
				t.Errorf("%s is in krping-%s and krping-%s", path, owner[path], p)
			}
			owner[path] = p
			if !debian.MatchString(path) {
				inDeb[plain.Replace(path)] = true
			}
		}
		for line := range strings.Lines(run(t, "rpm", "-qp", "--qf", "[%{FILEMODES:perms} %{FILENAMES}\n]", rpm(t, p))) {
			perms, path, _ := strings.Cut(strings.TrimSpace(line), " ")
			if !strings.HasPrefix(perms, "d") && !debian.MatchString(path) {
				inRPM[path] = true
			}
		}
		if !maps.Equal(inDeb, inRPM) {
			t.Errorf("krping-%s: .deb and .rpm differ:\n%v\n%v", p, slices.Sorted(maps.Keys(inDeb)), slices.Sorted(maps.Keys(inRPM)))
		}
	}
	if n := len(owner); n < 100 {
		t.Errorf("only %d files in all packages", n)
	}
}

// What depends on the build host's libraries installs on the oldest release that is supported.
func TestDependencies(t *testing.T) {
	depends := run(t, "dpkg-deb", "-f", deb(t, "target"), "Depends")
	for _, want := range []string{"libibverbs1", "librdmacm1", "ibverbs-providers", "krping-common"} {
		if !strings.Contains(depends, want) {
			t.Errorf("krping-target depends on %s, want %s", depends, want)
		}
	}
	requires := run(t, "rpm", "-qpR", rpm(t, "target"))
	for _, want := range []string{"libibverbs.so.1()(64bit)", "librdmacm.so.1()(64bit)", "rdma-core", "krping-common"} {
		if !strings.Contains(requires, want) {
			t.Errorf("krping-target requires %s, want %s", requires, want)
		}
	}
	// RHEL 9 has glibc 2.34.
	for _, m := range regexp.MustCompile(`GLIBC_2\.(\d+)\)`).FindAllStringSubmatch(requires, -1) {
		if len(m[1]) > 2 || len(m[1]) == 2 && m[1] > "34" {
			t.Errorf("krping-target requires GLIBC_2.%s, which RHEL 9 does not have", m[1])
		}
	}
	if depends := run(t, "dpkg-deb", "-f", deb(t, "common"), "Depends"); strings.Contains(depends, "libc6") {
		t.Errorf("krpingctl is not static: %s", depends)
	}
}

// Fonts or another large dependency for one picture are noticed here.
func TestSizeOfKrpingctl(t *testing.T) {
	const most = 25 << 20
	info, err := os.Stat(filepath.Join(root, "build/krpingctl"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > most {
		t.Errorf("krpingctl has %d bytes, more than %d: see `go tool nm -size -sort size` of a build without -s", info.Size(), most)
	}
}

func TestLintian(t *testing.T) {
	args := []string{"--allow-root", "--fail-on", "error,warning"}
	for _, p := range packages {
		args = append(args, deb(t, p))
	}
	if out := run(t, "lintian", args...); out != "" {
		t.Errorf("lintian:\n%s", out)
	}
}

// The scripts of the packages parse: those of rpm, too, run in a shell other than the build host's.
func TestMaintainerScripts(t *testing.T) {
	for _, p := range packages {
		dir := filepath.Join(t.TempDir(), "control")
		run(t, "dpkg-deb", "-e", deb(t, p), dir)
		scripts, err := filepath.Glob(dir + "/p*")
		if err != nil || len(scripts) == 0 {
			t.Errorf("krping-%s has no scripts: %v", p, err)
		}
		for _, s := range scripts {
			run(t, "sh", "-n", s)
		}
		for _, tag := range []string{"POSTIN", "PREUN", "POSTUN"} {
			script := run(t, "rpm", "-qp", "--qf", "%{"+tag+"}", rpm(t, p))
			if strings.Contains(script, "%") {
				t.Errorf("krping-%s: a macro that is not expanded in %s:\n%s", p, tag, script)
			}
			run(t, "sh", "-n", "-c", script)
		}
	}
}

var (
	helpFlag = regexp.MustCompile(`(?m)^ {2,6}(?:-\w, )?(--[\w-]+)`)
	bold     = regexp.MustCompile(`\\f[A-Z]`)
)

// Each command has a manual page, which names all its flags.
func TestManualPages(t *testing.T) {
	pages := map[string]bool{}
	for _, program := range []string{"krpingctl", "krping-bridge"} {
		checkManual(t, pages, []string{program})
	}
	all, err := filepath.Glob(filepath.Join(root, "build/man/*.8"))
	if err != nil || len(all) != len(pages) {
		t.Errorf("%d pages for %d commands: %v", len(all), len(pages), err)
	}
	args := []string{"-Tlint", "-Werror"}
	for _, path := range all {
		args = append(args, strings.TrimPrefix(path, root+"/"))
	}
	run(t, "mandoc", args...)
}

func checkManual(t *testing.T, pages map[string]bool, command []string) {
	t.Helper()
	name := strings.Join(command, "-") + ".8"
	text, err := os.ReadFile(filepath.Join(root, "build/man", name))
	if err != nil {
		t.Errorf("%s has no manual page: %v", strings.Join(command, " "), err)
		return
	}
	pages[name] = true
	page := strings.ReplaceAll(bold.ReplaceAllString(string(text), ""), `\-`, "-")
	help := run(t, "build/"+command[0], append(slices.Clone(command[1:]), "--help")...)
	for _, m := range helpFlag.FindAllStringSubmatch(help, -1) {
		if m[1] != "--version" && !strings.Contains(page, m[1]) {
			t.Errorf("%s does not name %s", name, m[1])
		}
	}
	_, list, _ := strings.Cut(help, "\nAvailable Commands:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	for line := range strings.Lines(list) {
		if sub := strings.Fields(line)[0]; sub != "help" {
			checkManual(t, pages, append(slices.Clone(command), sub))
		}
	}
}

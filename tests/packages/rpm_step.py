"""The RPM: what is in it, and its life below a root of its own."""

import os

from steps import Missing, hold, need, run


def check(program, folder, dist):
    if os.geteuid() != 0:
        raise Missing("only root can install below a root")
    need("rpmbuild", "rpm")
    packages = []
    for release in (1, 2):
        (package,) = dist(program, folder / f"rpm{release}", release, "rpm").glob("*.rpm")
        packages.append(package)
    listed = run(["rpm", "-qp", "--qf", "[%{FILENAMES} %{FILEMODES:octal} %{FILEUSERNAME} %{FILEGROUPNAME}\n]", packages[0]])
    for line in (
        "/usr/bin/stoker 100755 root root", "/etc/stoker/stoker.toml 100640 root stoker", "/etc/stoker/environment 100600 root root",
        "/var/lib/stoker 40700 stoker stoker", "/usr/lib/systemd/system/stoker.service 100644 root root",
    ):  # fmt: skip
        hold(line in listed, f"the RPM has no line `{line}`:\n{listed}")
    hold("/etc/stoker/stoker.toml" in run(["rpm", "-qp", "--configfiles", packages[0]]), "the configuration is no configuration")
    hold("libc.so.6" in run(["rpm", "-qp", "--requires", packages[0]]), "the RPM does not say which glibc it needs")

    root = folder / "rpm-root"
    root.mkdir()
    # Scripts would need a whole system below the root; glibc of this machine is in no RPM database.
    rpm = ["rpm", "--root", root, "--nodeps", "--noscripts"]
    run([*rpm, "--ignorearch", "--install", packages[0]])
    toml = root / "etc/stoker/stoker.toml"
    toml.write_text(toml.read_text() + "# of the operator\n")
    (root / "var/lib/stoker/node.json").write_text("{}")
    run([*rpm, "--ignorearch", "--upgrade", packages[1]])
    hold("# of the operator" in toml.read_text(), "the upgrade lost what the operator wrote")
    run([*rpm, "--erase", "stoker"])
    hold(not (root / "usr/bin/stoker").exists(), "the removal left the program")
    hold((root / "var/lib/stoker/node.json").exists(), "the removal took data away")

//! A node as a service: what the service manager is told, and how a second one joins by its configuration.

use std::collections::HashSet;
use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::rig::{Node, binary, ran, wait_for};

/// A limit for a broken node, not an order of events.
const PATIENCE: Duration = Duration::from_secs(60);

/// A node that never says that it is ready fails a test, and does not hold it up.
const MESSAGES_MAX: usize = 100;

fn config(folder: &Path, name: &str, more: &str) -> String {
    let (dir, drive) = (folder.join(name), folder.join(format!("{name}-drive")));
    fs::create_dir(&drive).unwrap();
    let lake = folder.join("lake");
    fs::create_dir_all(&lake).unwrap();
    let file = folder.join(format!("{name}.toml"));
    let text = format!(
        "[node]\ndir = {dir:?}\nmemory = \"256MiB\"\n[[drive]]\npath = {drive:?}\nsize = \"256MiB\"\n\
         [lake]\nurl = \"file://{}\"\n[s3]\nlisten = [\"127.0.0.1:0\"]\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [peers]\nlisten = [\"127.0.0.1:0\"]\nname = \"{name}\"\n{more}",
        lake.display()
    );
    fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

fn serve(file: &str, dir: &Path, env: &[(&str, &str)]) -> Node {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stoker"));
    command.args(["serve", "--json", "--config", file]).envs(env.iter().copied());
    Node::start(command, dir)
}

/// The next message; a status is not compared.
fn next(socket: &UnixDatagram) -> String {
    let mut bytes = [0; 4096];
    let len = socket.recv(&mut bytes).expect("the node fell silent");
    let text = String::from_utf8(bytes[..len].to_vec()).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("STATUS=")).collect();
    lines.join(" ")
}

fn stop(node: &mut Node) {
    assert!(Command::new("kill").arg(node.child.id().to_string()).status().unwrap().success());
    assert_eq!(node.child.wait().unwrap().code(), Some(0));
}

#[test]
fn the_service_manager_is_told() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = config(folder.path(), "n1", "");
    let dir = folder.path().join("n1");
    // Paths of sockets are short, and this folder may be deep.
    let short = tempfile::tempdir().unwrap();
    let path = short.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut node =
        serve(&file, &dir, &[("NOTIFY_SOCKET", path.to_str().unwrap()), ("WATCHDOG_USEC", "200000")]);
    let mut said = HashSet::new();
    for message in std::iter::repeat_with(|| next(&manager)).take(MESSAGES_MAX) {
        said.insert(message);
        if said.contains("READY=1") && said.contains("WATCHDOG=1") {
            break;
        }
    }
    assert!(said.contains("READY=1") && said.contains("WATCHDOG=1"), "{said:?}");
    assert!(said.iter().all(|message| ["", "READY=1", "WATCHDOG=1"].contains(&message.as_str())), "{said:?}");
    stop(&mut node);
    let mut rest = Vec::new();
    manager.set_nonblocking(true).unwrap();
    while let Ok(message) = std::panic::catch_unwind(|| next(&manager)) {
        rest.push(message);
    }
    assert_eq!(rest.iter().filter(|message| *message == "STOPPING=1").count(), 1, "{rest:?}");

    // An abstract name, without a watchdog; then a manager that is gone, which is no reason not to run.
    let name = format!("stoker-test-{}", std::process::id());
    let manager = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let named = format!("@{name}");
    let mut node =
        serve(&file, &dir, &[("NOTIFY_SOCKET", &named), ("WATCHDOG_USEC", "200000"), ("WATCHDOG_PID", "1")]);
    assert_eq!((next(&manager).as_str(), next(&manager).as_str()), ("", "READY=1"));
    drop(manager);
    stop(&mut node);
    for nonsense in ["@", "no/path", "/no/such/socket"] {
        stop(&mut serve(&file, &dir, &[("NOTIFY_SOCKET", nonsense)]));
    }
}

#[test]
fn a_second_service_joins_by_its_configuration() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (n1, n2) = (folder.path().join("n1"), folder.path().join("n2"));
    let (first, second) = (config(folder.path(), "n1", ""), config(folder.path(), "n2", ""));
    let one = serve(&first, &n1, &[]);
    let address = one.ready["peers"][0].as_str().unwrap().to_owned();
    let join = |token: &str| {
        ran(binary().args(["join", &address, "--config", &second]).env("STOKER_JOIN_TOKEN", token))
    };
    let wrong = join("stoker1-nonsense");
    assert_eq!(wrong.code, 1, "{}", wrong.err);
    let token = ran(binary().args(["join-token", "create", "--dir"]).arg(&n1));
    let token = token.text().trim().to_owned();
    let joined = join(&token);
    assert_eq!(joined.code, 0, "{}", joined.err);
    assert!(joined.err.contains("is now a node of the cluster"), "{}", joined.err);
    assert!(joined.err.contains("stoker serve --config"), "{}", joined.err);
    // The same line again changes nothing.
    let again = join(&token);
    assert!(again.code == 0 && again.err.contains("is a node already"), "{}", again.err);
    let two = serve(&second, &n2, &[]);
    let count = || {
        let listed = ran(binary().args(["node", "ls", "--json", "--dir"]).arg(&n1));
        listed.json_lines().iter().filter(|node| node["state"] == "up").count()
    };
    wait_for(|| count() == 2);
    drop((one, two));
}

//! Two cells of real processes: what one wrote and has not drained is read from the other.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use crate::rig::*;

#[test]
fn what_one_cell_wrote_is_read_through_the_other() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let home = folder.path().join("all");
    let mut command = binary();
    command.args(["up", "--nodes", "4", "--cells", "2", "--json"]);
    command.args(["--size", "256MiB", "--memory", "1GiB"]).arg("--dir").arg(&home);
    let all = Node::start(command, &home);
    let nodes = all.ready.as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let cells: Vec<String> = nodes.iter().map(|node| text(&node["domain"]["cell"])).collect();
    assert_eq!(cells, ["cell-1", "cell-1", "cell-2", "cell-2"]);
    let on = |at: usize, args: &str| {
        let mut command = binary();
        command.args(args.split(' ')).env("STOKER_DIR", text(&nodes[at]["dir"])).current_dir(folder.path());
        let ran = ran(&mut command);
        assert_eq!(ran.code, 0, "stoker {args}: {}{}", ran.text(), ran.err);
        ran
    };
    on(0, "volume set data --drain on-demand");
    for (at, far) in [(0, 3), (2, 1)] {
        let bytes = bytes_of(at as u64, 9_000_000);
        fs::write(folder.path().join("in"), &bytes).unwrap();
        let receipt = on(at, &format!("put in data/from-{at} --json")).json();
        let held: BTreeSet<String> =
            receipt["holders"].as_array().unwrap().iter().map(|holder| text(&holder["node"])).collect();
        let near: BTreeSet<String> = (0..4)
            .filter(|other| cells[*other] == cells[at])
            .map(|other| text(&nodes[other]["id"]))
            .collect();
        assert_eq!(held, near, "both copies are in the cell of their home");
        on(far, &format!("get data/from-{at} out-{at}"));
        assert!(fs::read(folder.path().join(format!("out-{at}"))).unwrap() == bytes);
        let status = on(far, "status").text();
        assert!(status.contains(&format!("of cell {}", cells[at])), "{status}");
    }
    let drained = |(path, _): &(std::path::PathBuf, Vec<u8>)| path.to_string_lossy().contains("from-");
    assert!(!tree(&home.join("lake")).iter().any(drained), "nothing was drained");
}

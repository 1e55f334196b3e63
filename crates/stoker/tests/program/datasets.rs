//! `stoker pack` and `stoker seal` against a node in a process of its own.

use crate::rig::*;

#[test]
fn a_tree_is_packed_and_its_shards_are_sealed_again() {
    let rig = Rig::new();
    for number in 0..200 {
        rig.write(&format!("tree/{number:03}.jpg"), &bytes_of(number, 2000));
        rig.write(&format!("tree/{number:03}.cls"), b"7");
    }
    rig.write("tree/README", b"no extension");
    let packed = rig.succeed("pack tree data/train --shard-bytes 128KiB -j 2 --json").json();
    assert_eq!(
        (&packed["files"], &packed["samples"], &packed["resumed"]),
        (&401.into(), &201.into(), &0.into())
    );
    assert_eq!((&packed["seal"], &packed["skipped_by_webdataset"]), (&"train.seal".into(), &1.into()));
    let shards = packed["shards"].as_u64().unwrap();
    assert!(shards > 3, "{packed}");
    // The shards and their seal; what was kept in case of a stop is gone.
    let listed = rig.succeed("ls data").lines();
    assert_eq!(listed.len() as u64, shards + 1, "{listed:?}");

    // Nothing is done twice.
    let again = rig.succeed("pack tree data/train --shard-bytes 128KiB");
    assert!(again.text().starts_with("data/train.seal: 201 samples of 401 files in "), "{}", again.text());
    assert!(again.text().contains(&format!("({shards} kept)")), "{}", again.text());
    assert!(again.err.contains("1 file without an extension"), "{}", again.err);

    let sealed = rig.succeed("seal data/train- --to data/again.seal --json").json();
    assert_eq!((&sealed["samples"], &sealed["shards"]), (&packed["samples"], &packed["shards"]));
    let text = rig.succeed("seal data/train- --to data/again.seal").text();
    assert!(text.contains(sealed["identity"].as_str().unwrap()), "{text}");

    // From the volume, too.
    rig.succeed("put tree data/raw");
    let there = rig.succeed("pack stoker://data/raw data/other --json").json();
    assert_eq!((&there["samples"], &there["shards"]), (&201.into(), &1.into()));

    rig.write("tree/000.cls", b"another class");
    rig.refuse(
        "pack tree data/train --shard-bytes 128KiB",
        "data/train-000000.tar: it is there",
        "see what is there",
    );
    rig.succeed("pack tree data/train --replace");
    rig.refuse("pack nowhere data/x", "nowhere: No such file", "check the path");
    rig.refuse("pack tree none/x", "stoker://none: ", "make one");
    rig.refuse("pack tree data/x/", "a dataset needs a name", "");
    rig.refuse("pack stoker://data/raw data/raw/x", "would pack itself", "");
    rig.refuse("seal data/raw/000.jpg --to data/x.seal", "no .tar is there", "");
    rig.refuse("seal data/train other/train --to data/x.seal", "not in the volume data", "make one seal");
    rig.succeed("put tree/000.jpg data/bad.tar");
    rig.refuse("seal data/bad --to data/x.seal", "data/bad.tar: no sound tar", "look at the node");
}

//! What the documents show is what is read.

use stoker_jobs::{Values, check_spec, expand, read_spec, spec_of_script};

fn blocks(kind: &str) -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/jobs.md");
    let text = std::fs::read_to_string(path).unwrap();
    let fence = format!("```{kind}\n");
    text.split(&fence).skip(1).map(|rest| rest.split("\n```").next().unwrap().to_owned()).collect()
}

fn values() -> Values {
    Values {
        user: "alice".into(),
        tenant: "acme".into(),
        project: Some("vision".into()),
        allocation_id: "train-7".into(),
    }
}

#[test]
fn the_example_of_a_spec_is_one() {
    let blocks = blocks("yaml");
    assert_eq!(blocks.len(), 1);
    let read = read_spec(&blocks[0]).unwrap();
    let (spec, notes) = expand(&read.spec, &values()).unwrap();
    check_spec(&spec).unwrap();
    assert_eq!(spec.mounts[1].source, "nfs://home/alice");
    assert_eq!(spec.output.as_deref(), Some("s3://data/vision/train-7/"));
    assert!(spec.checkpoint && spec.scratch_per_node == 500_000_000 && notes.is_empty());
    assert_eq!((read.name.as_deref(), read.project.as_deref()), (Some("imagenet-7"), Some("vision")));
}

#[test]
fn the_example_of_a_script_is_one() {
    let blocks = blocks("bash");
    let text = spec_of_script(&blocks[0]).unwrap().expect("it has lines for us");
    let (spec, _) = expand(&read_spec(&text).unwrap().spec, &values()).unwrap();
    check_spec(&spec).unwrap();
    assert_eq!(
        (spec.mounts[0].source.as_str(), spec.scratch_per_node),
        ("s3://data/imagenet", 100_000_000_000)
    );
}

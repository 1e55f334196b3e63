//! The lab's numbers, bit for bit, over the corners of its sliders. `tests/lab/golden.py` computes them by the lab's formulas.

use stoker_planner::{Constants, Inputs, Model, lab, plan, spec};

fn rows(text: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    text.lines().map(|line| line.split('\t').collect())
}

fn number(text: &str) -> u32 {
    text.parse().unwrap()
}

fn same(place: &str, found: &[f64], wanted: &[&str]) {
    for (at, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        let wanted: f64 = wanted.parse().unwrap();
        assert_eq!(found.to_bits(), wanted.to_bits(), "{place}, number {at}: {found} and not {wanted}");
    }
}

#[test]
fn the_analyzer_is_the_labs() {
    let mut count = 0;
    for row in rows(include_str!("lab/io.tsv")) {
        let [context, workers, batch, pattern, osts, wanted @ ..] = row.as_slice() else { panic!("{row:?}") };
        let found = lab::analyze(*context == "nvme", number(workers), number(batch), pattern, number(osts));
        let numbers = [
            found.base_gbs,
            found.network,
            found.pattern,
            found.worker,
            found.prefetch_depth,
            found.effective_gbs,
            found.per_gpu_gbs,
            found.batch_gb,
            found.io_ms,
            found.wait_ms,
            found.total_ms,
            found.utilization,
            found.storage_utilization,
        ];
        assert_eq!(wanted.len(), numbers.len() + 1);
        same(&row[..5].join(" "), &numbers, wanted);
        // And the plan shows them.
        let texts = [
            ("context", *context),
            ("workers", workers),
            ("batch", batch),
            ("pattern", pattern),
            ("osts", osts),
        ];
        let inputs = Inputs::from_texts(spec("io", Model::Lab).unwrap(), texts).unwrap();
        let plan = plan(&inputs, &Constants::default());
        assert_eq!(plan.value("utilization"), Some(found.utilization / 100.0));
        assert!(plan.title.starts_with(wanted[13]), "{}", plan.title);
        let curve = &plan.curves[0];
        assert_eq!(curve.lines[0].y[number(workers) as usize - 1], found.utilization / 100.0);
        count += 1;
    }
    assert_eq!(count, 2 * 7 * 3 * 3 * 3);
}

#[test]
fn the_designer_is_the_labs() {
    let mut count = 0;
    for row in rows(include_str!("lab/design.tsv")) {
        let [context, gpus, workers, dataset, mds, wanted @ ..] = row.as_slice() else { panic!("{row:?}") };
        let found = lab::architect(*context == "nvme", number(gpus), number(workers), dataset, number(mds));
        let place = row[..5].join(" ");
        same(&place, &[found.workers, found.ops, found.mds_capacity, found.mds_utilization], &wanted[..4]);
        assert_eq!(found.is_mds_saturated, wanted[4] == "True", "{place}");
        same(&place, &[found.demand_gbs, found.supply_gbs, found.headroom], &wanted[5..8]);
        assert_eq!(found.is_bandwidth_saturated, wanted[8] == "True", "{place}");
        same(&place, &[found.needed_mds], &wanted[9..10]);
        assert_eq!(found.recommendation, wanted[10], "{place}");
        count += 1;
    }
    assert_eq!(count, 2 * 3 * 4 * 3 * 3);
}

#[test]
fn the_texts_of_the_lab_that_its_code_bears_out() {
    // The opening scenario: the text says 12 %, the code 1.1 %.
    let opening = lab::analyze(false, 1, 64, "random", 24);
    assert_eq!(format!("{:.1}", opening.utilization), "1.1");
    // 4,096 GPUs x 8 workers x 50 opens x 3 operations against one server.
    let large = lab::architect(false, 4096, 8, "individual", 1);
    assert_eq!((large.ops, large.needed_mds), (4_915_200.0, 99.0));
    assert_eq!(large.demand_gbs.round(), 328.0);
    assert_eq!(lab::gravity(100_000.0, 12.5, 0.09, 512.0, 3.5, 24.0), (8_000.0, 9_000.0, 43_008.0));
}

//! Cells of three to thousands of nodes, in good and bad weather. Long forms with STOKER_FULL=1.

use std::time::Duration;

use stoker_fabric::membership::Event;

use crate::network::{Network, Weather, node};

const SECOND: Duration = Duration::from_secs(1);

fn full() -> bool {
    std::env::var_os("STOKER_FULL").is_some()
}

fn gone(event: &Event) -> bool {
    matches!(event, Event::Gone(_))
}

fn suspect(event: &Event) -> bool {
    matches!(event, Event::Suspect(_))
}

/// Loss for a minute and more: nobody is taken for gone, one crash is noticed by all, and all agree afterwards.
fn survive_loss(hosts: usize, seed: u64) {
    let mut network = Network::new(hosts, seed, Weather::lossy());
    network.start_all();
    network.run_for(60 * SECOND);
    let sent = network.sent as f64 / hosts as f64 / 60.0;
    let false_suspects = network.count(suspect);
    assert_eq!(network.count(gone), 0, "seed {seed}: nobody is gone");
    eprintln!(
        "{hosts} nodes, 5 % loss, seed {seed}: {sent:.1} datagrams/s per node, {false_suspects} times a node was wrongly \
         suspect at another within a minute",
    );

    let victim = hosts - 1;
    network.crash(victim);
    let crashed = network.now;
    network.run_for(45 * SECOND);
    let mut noticed = network.first(crashed, |event| *event == Event::Suspect(node(victim)));
    let verdicts = network.first(crashed, |event| *event == Event::Gone(node(victim)));
    noticed.sort();
    assert_eq!(network.count(|event| gone(event) && event.node() != node(victim)), 0, "seed {seed}");
    assert_eq!(noticed.len(), hosts - 1, "seed {seed}: all notice");
    assert_eq!(verdicts.len(), hosts - 1, "seed {seed}: all propose");
    eprintln!(
        "{hosts} nodes, 5 % loss, seed {seed}: a crash is suspect at the first after {:.2} s, at half of them after \
         {:.2} s, at all after {:.2} s",
        noticed[0].as_secs_f64(),
        noticed[noticed.len() / 2].as_secs_f64(),
        noticed[noticed.len() - 1].as_secs_f64(),
    );

    network.weather = Weather::clear();
    network.run_for(40 * SECOND);
    for host in 0..victim {
        assert_eq!(network.view(host).len(), hosts - 2, "seed {seed}: host {host} sees all others");
    }
}

#[test]
fn loss_makes_nobody_gone() {
    for seed in 0..4 {
        survive_loss(3, seed);
        survive_loss(16, seed);
    }
}

#[test]
fn loss_makes_nobody_gone_among_512() {
    if full() {
        survive_loss(512, 1);
        survive_loss(512, 2);
    }
}

#[test]
fn loss_makes_nobody_gone_among_4096() {
    if full() {
        survive_loss(4096, 1);
    }
}

#[test]
fn a_dead_node_of_three_is_suspect_within_seconds() {
    let mut worst = Duration::ZERO;
    for seed in 0..50 {
        let mut network = Network::new(3, seed, Weather::clear());
        network.start_all();
        network.run_for(5 * SECOND);
        network.crash(2);
        let crashed = network.now;
        network.run_for(10 * SECOND);
        let noticed = network.first(crashed, |event| *event == Event::Suspect(node(2)));
        assert_eq!(noticed.len(), 2, "seed {seed}");
        worst = worst.max(noticed.into_iter().max().unwrap_or_default());
    }
    eprintln!("3 nodes: a crash is suspect at all after at most {:.2} s", worst.as_secs_f64());
    assert!(worst < 3 * SECOND, "{worst:?}");
}

#[test]
fn nodes_find_each_other_by_the_seeds() {
    let hosts = if full() { 512 } else { 48 };
    let mut network = Network::new(hosts, 7, Weather::lossy());
    for host in 0..hosts {
        network.start(host);
    }
    network.run_for(90 * SECOND);
    for host in 0..hosts {
        assert_eq!(network.view(host).len(), hosts - 1, "host {host}");
    }
    assert_eq!(network.count(gone), 0);
}

#[test]
fn a_late_joiner_learns_of_everybody_within_seconds() {
    let hosts = if full() { 2048 } else { 128 };
    let mut network = Network::new(hosts, 11, Weather::clear());
    network.start_all();
    network.crash(hosts - 1);
    network.run_for(10 * SECOND);
    network.hosts[hosts - 1].boot = 1;
    network.start(hosts - 1);
    network.run_for(5 * SECOND);
    assert_eq!(network.view(hosts - 1).len(), hosts - 1);
}

#[test]
fn a_partition_heals() {
    for (hosts, length, seeds) in [(2, 10, 2), (2, 10, 0), (3, 10, 0), (16, 20, 3), (16, 60, 0)] {
        heal(hosts, length, seeds);
    }
}

fn heal(hosts: usize, length: u32, seeds: usize) {
    let case = format!("{hosts} hosts with {seeds} seeds, cut for {length} s");
    let mut network = Network::new(hosts, 3, Weather::clear());
    network.seeds = seeds;
    network.start_all();
    network.run_for(5 * SECOND);
    for host in 0..hosts / 2 {
        network.hosts[host].side = 1;
    }
    network.run_for(length * SECOND);
    let verdicts = if length < 30 { 0 } else { 2 * (hosts / 2) * (hosts - hosts / 2) };
    assert_eq!(network.count(gone), verdicts, "{case}");
    for host in 0..hosts {
        network.hosts[host].side = 0;
    }
    network.run_for(60 * SECOND);
    for host in 0..hosts {
        assert_eq!(network.view(host).len(), hosts - 1, "{case}: host {host}");
    }
    assert_eq!(network.count(gone), verdicts, "{case}");
}

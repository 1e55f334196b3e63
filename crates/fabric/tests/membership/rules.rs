//! Restarts, pauses, goodbyes, cut cables and two processes with one id.

use std::time::Duration;

use stoker_fabric::membership::{Core, Effects, Event, Settings};

use crate::network::{Network, Weather, identity, node};

const SECOND: Duration = Duration::from_secs(1);

fn calm(hosts: usize, seed: u64) -> Network {
    let mut network = Network::new(hosts, seed, Weather::clear());
    network.start_all();
    network.run_for(5 * SECOND);
    network
}

fn events_of(network: &Network, host: usize, of: usize) -> Vec<Event> {
    let events = network.hosts[host].events.iter().map(|(_, event)| event.clone());
    events.filter(|event| event.node() == node(of)).collect()
}

#[test]
fn a_restarted_node_replaces_its_old_self_at_once() {
    let mut network = calm(5, 1);
    network.crash(4);
    network.start(4);
    network.run_for(3 * SECOND);
    for host in 0..4 {
        let events = events_of(&network, host, 4);
        assert!(matches!(&events[..], [Event::Joined(peer)] if peer.boot == 2), "host {host}: {events:?}");
        assert_eq!(network.view(host).len(), 4);
    }
}

#[test]
fn a_paused_process_is_suspect_and_then_alive() {
    let mut network = calm(5, 2);
    network.hosts[4].paused = true;
    network.run_for(20 * SECOND);
    network.resume(4);
    network.run_for(20 * SECOND);
    for host in 0..4 {
        let expect = [Event::Suspect(node(4)), Event::Alive(node(4))];
        assert_eq!(events_of(&network, host, 4), expect, "host {host}");
    }
    assert_eq!(network.count(|event| matches!(event, Event::Gone(_))), 0);
    assert_eq!(network.view(4).len(), 4);
}

/// While it stood still it heard nobody; that must not become a verdict on those who could not be heard.
#[test]
fn who_stood_still_gives_no_verdict_on_waking() {
    let mut network = calm(5, 3);
    network.crash(3);
    network.run_for(6 * SECOND);
    network.hosts[4].paused = true;
    network.run_for(40 * SECOND);
    let woken = network.now;
    network.resume(4);
    network.start(3);
    network.run_for(20 * SECOND);
    let gone = network.first(woken, |event| matches!(event, Event::Gone(_)));
    assert!(gone.is_empty(), "nobody is gone, {gone:?}");
    assert_eq!(network.view(4).len(), 4);
}

#[test]
fn a_goodbye_is_not_a_failure() {
    for (weather, seed) in [(Weather::clear(), 4), (Weather::lossy(), 5), (Weather::lossy(), 6)] {
        let mut network = calm(24, seed);
        network.weather = weather;
        network.leave(23);
        network.run_for(60 * SECOND);
        for host in 0..23 {
            assert_eq!(events_of(&network, host, 23), [Event::Left(node(23))], "host {host}, seed {seed}");
        }
        network.start(23);
        network.run_for(40 * SECOND);
        assert!((0..23).all(|host| network.view(host).contains(&node(23))), "it may come back");
    }
}

#[test]
fn a_cut_cable_makes_nobody_suspect() {
    for seed in 0..5 {
        let mut network = calm(6, seed);
        network.hosts[5].cut[0] = true;
        network.run_for(60 * SECOND);
        assert_eq!(network.count(|event| matches!(event, Event::Suspect(_))), 0, "seed {seed}");
        network.hosts[5].cut = [false, true];
        network.run_for(60 * SECOND);
        assert_eq!(network.count(|event| matches!(event, Event::Suspect(_))), 0, "seed {seed}");
    }
}

#[test]
fn of_two_processes_with_one_id_the_older_stops() {
    for seed in 0..5 {
        let mut network = Network::new(6, seed, Weather::clear());
        for host in 0..5 {
            network.start(host);
        }
        network.run_for(20 * SECOND);
        network.hosts[5].boot = 9;
        network.boot(5, 4, &[]);
        network.run_for(30 * SECOND);
        let told = events_of(&network, 4, 4);
        assert!(
            matches!(&told[..], [Event::Duplicate { older: 1, newer: 9, .. }]),
            "seed {seed}: the older one learns it once: {told:?}"
        );
        for host in 0..4 {
            assert_eq!(network.view(host).len(), 4, "seed {seed}");
            let flaps = events_of(&network, host, 4).len();
            assert!(flaps <= 3, "seed {seed}: {:?}", events_of(&network, host, 4));
        }
    }
}

/// The older process is cut off while the newer joins, so both are live and unaware; then it comes back.
#[test]
fn a_duplicate_that_was_away_is_reported_by_others() {
    let mut network = Network::new(6, 8, Weather::clear());
    for host in 0..5 {
        network.start(host);
    }
    network.run_for(10 * SECOND);
    network.hosts[4].side = 1;
    network.hosts[5].boot = 9;
    network.boot(5, 4, &[]);
    network.run_for(10 * SECOND);
    network.hosts[4].side = 0;
    network.run_for(10 * SECOND);
    let duplicate = |event: &Event| matches!(event, Event::Duplicate { older: 1, newer: 9, .. });
    assert!(events_of(&network, 4, 4).iter().any(duplicate), "the older one learns it");
    assert!(network.count(duplicate) >= 2, "and somebody else reports it");
    for host in &network.hosts {
        assert!(host.events.iter().filter(|(_, event)| duplicate(event)).count() <= 1, "nobody repeats it");
    }
    assert!((0..4).all(|host| network.view(host).len() == 4));
}

/// It is in the catalog, and hung before anybody heard of it.
#[test]
fn a_node_that_is_introduced_and_never_answers_is_missed() {
    let mut network = Network::new(4, 10, Weather::clear());
    (0..3).for_each(|host| network.start(host));
    network.run_for(5 * SECOND);
    network.introduce(0, &[identity(3, 0)]);
    network.run_for(90 * SECOND);
    let events = events_of(&network, 0, 3);
    assert!(matches!(events.first(), Some(Event::Joined(_))), "{events:?}");
    assert_eq!(events.last(), Some(&Event::Gone(node(3))), "{events:?}");
    // Of those who answer, nothing new is learned by that.
    let before = network.count(|_| true);
    network.introduce(0, &[identity(1, 0), identity(2, 0)]);
    network.run_for(10 * SECOND);
    assert_eq!((network.count(|_| true), network.view(0).len()), (before, 2));
}

#[test]
fn bytes_of_any_kind_are_refused_without_a_panic() {
    let mut network = calm(3, 9);
    let from = "10.0.0.9:7000".parse().expect("an address");
    let mut core = Core::new(identity(0, 1), Settings::default(), Vec::new(), 1, Duration::ZERO);
    let mut effects = Effects::default();
    core.introduce(vec![identity(1, 1), identity(2, 1)], Duration::ZERO, &mut effects);
    core.tick(5 * SECOND, &mut effects);
    let real: Vec<Vec<u8>> = effects.datagrams.drain(..).map(|(_, body)| body).collect();
    assert!(!real.is_empty());
    for round in 0..20_000 {
        let body = match real.get(round % (real.len() + 1)) {
            Some(body) => {
                let mut body = body.clone();
                let at = network.number() as usize % body.len();
                body[at] ^= network.number() as u8;
                body.truncate(body.len() - network.number() as usize % 2 * at.min(7));
                body
            }
            None => {
                let length = network.number() as usize % 200;
                (0..length).map(|_| network.number() as u8 % 8).collect()
            }
        };
        let _either = core.handle(from, &body, 6 * SECOND, &mut effects);
        effects = Effects::default();
    }
}

//! Processes end, stop and leave.

use super::{Faulter, wait};
use crate::cell::machine::Death;
use crate::cell::world::GRACE;
use crate::rng::Rng;

/// Between looks for a hole.
const HOLE_LOOK_MS: u64 = 5;

impl Faulter {
    fn end(&self, at: usize, rng: &mut Rng) {
        let death = match rng.below(4) {
            0 | 1 => Death::Kill,
            2 => Death::Power { survive_percent: 0 },
            _ => Death::Power { survive_percent: rng.below(100) as u64 },
        };
        if self.cluster.machines[at].is_up() {
            self.cluster.end(at, death);
        }
    }

    pub(super) async fn restart(&self, at: usize, ms: u64, rng: &mut Rng) {
        self.end(at, rng);
        wait(ms).await;
        self.cluster.boot(at);
    }

    pub(super) async fn restart_all(&self, ms: u64, rng: &mut Rng) {
        let all = 0..self.cluster.machines.len();
        all.clone().for_each(|at| self.end(at, rng));
        wait(ms).await;
        all.for_each(|at| self.cluster.boot(at));
    }

    /// While drives are slow, writes that began later end earlier; a power cut then leaves holes in front of what was
    /// acknowledged.
    pub(super) async fn cut_power_of_slow_drives(&self, ms: u64, rng: &mut Rng) {
        let machines = &self.cluster.machines;
        let slow_ms = rng.between(100, 600);
        machines.iter().for_each(|machine| machine.set_slow_ms(slow_ms));
        for _ in 0..ms / HOLE_LOOK_MS {
            wait(HOLE_LOOK_MS).await;
            if machines.iter().any(|machine| machine.has_hole()) {
                // Long enough for somebody to be told that the later write is safe.
                wait(rng.between(2, 60) as u64).await;
                break;
            }
        }
        for (at, machine) in machines.iter().enumerate() {
            if machine.is_up() {
                self.cluster.end(at, Death::Power { survive_percent: rng.below(2) as u64 * 20 });
            }
            machine.set_slow_ms(0);
        }
        wait(100).await;
        (0..machines.len()).for_each(|at| self.cluster.boot(at));
    }

    pub(super) async fn stop(&self, at: usize, ms: u64) {
        let cluster = &self.cluster;
        cluster.trace.note(format_args!("m{at} is stopped for {ms} ms"));
        cluster.machines[at].stop();
        wait(ms).await;
        cluster.trace.note(format_args!("m{at} goes on"));
        cluster.machines[at].go_on();
    }

    /// Stops a node that wrote to the lake and has not heard so, for so long that others take over.
    pub(super) async fn stop_in_a_write(&self, patience_ms: u64, rng: &mut Rng) {
        let next = tokio::select! {
            biased;
            at = self.cluster.lake_way.next_write() => Some(at),
            () = wait(patience_ms) => None,
        };
        if let Some(at) = next {
            self.stop(at, GRACE.as_millis() as u64 + rng.between(500, 6_000) as u64).await;
        }
    }

    pub(super) async fn leave(&self, at: usize, ms: u64) {
        let cluster = self.cluster.clone();
        // To its end even if the time of faults is over meanwhile: nobody else would start it again.
        let left = tokio::spawn(async move {
            cluster.leave(at).await;
            wait(ms).await;
            cluster.boot(at);
        });
        let _ = left.await;
    }
}

//! Histories of one ring: requests, completions in any order, a crash at every I/O boundary.

pub mod model;
mod workload;
pub mod world;

use crate::drive::SimDrive;
use crate::rng::Rng;
use workload::Workload;
use world::{Plan, World};

/// What one seed did.
#[derive(Clone, Copy, Default, Debug)]
pub struct Tally {
    /// Crash images recovered and compared with the model.
    pub crash_points: u64,
    /// Crashes after which the history went on.
    pub crashes: u64,
    /// I/O commands finished.
    pub ios: u64,
    /// Requests made.
    pub requests: u64,
    /// Requests refused because the ring was full of must-keep bytes.
    pub refusals: u64,
    /// Segments reclaimed, a measure of laps.
    pub reclaimed: u64,
}

impl Tally {
    /// Adds another seed's.
    pub fn add(&mut self, other: &Tally) {
        self.crash_points += other.crash_points;
        self.crashes += other.crashes;
        self.ios += other.ios;
        self.requests += other.requests;
        self.refusals += other.refusals;
        self.reclaimed += other.reclaimed;
    }
}

/// Runs the history of one seed; an error says which promise broke.
pub fn run_seed(seed: u64) -> Result<Tally, String> {
    run(seed, |_| {})
}

/// The same with a bug planted: a segment that a lease shows is written again in place.
pub fn run_reusing_leased(seed: u64) -> Result<Tally, String> {
    run(seed, |drive| drive.reuses_leased = true)
}

fn run(seed: u64, plant: impl FnOnce(&mut SimDrive)) -> Result<Tally, String> {
    let mut rng = Rng::new(seed);
    let plan = Plan::of(&mut rng);
    let mut tally = Tally::default();
    let mut world = World::new(plan.clone(), &mut rng)?;
    plant(&mut world.drive);
    let mut workload = Workload::new(&plan);
    while (tally.requests as usize) < plan.requests && world.engine.poisoned().is_none() {
        if world.in_flight.len() < 6 && rng.percent(55) {
            workload.request(&mut world, &mut rng)?;
            tally.requests += 1;
        } else {
            step(&mut world, &mut rng, &mut tally)?;
        }
        if rng.percent(1) && rng.percent(60) {
            world = world.crash(&mut rng)?;
            workload.forget_clean();
            tally.crashes += 1;
        }
    }
    tally.refusals = world.refusals;
    if world.engine.poisoned().is_none() {
        liveness(&mut world, &mut workload, &mut rng, &mut tally)?;
    }
    while !world.in_flight.is_empty() {
        step(&mut world, &mut rng, &mut tally)?;
    }
    world.check_now()?;
    let world = world.crash(&mut rng)?;
    tally.crashes += 1;
    world.check_now()?;
    Ok(tally)
}

/// One I/O boundary: check the crash just before it, pass it.
fn step(world: &mut World, rng: &mut Rng, tally: &mut Tally) -> Result<(), String> {
    world.check_crash(rng)?;
    tally.crash_points += 1;
    if rng.percent(world.plan.faults.rot_percent) {
        world.drive.rot(rng);
    }
    let before = world.engine.reclaimed_segments();
    world.finish_one(rng)?;
    tally.reclaimed += world.engine.reclaimed_segments() - before;
    tally.ios += 1;
    world.check_readers()?;
    world.check_leases()
}

/// Without faults the ring must come to rest, and after deletes it must take data again (R3: no deadlock).
fn liveness(
    world: &mut World,
    workload: &mut Workload,
    rng: &mut Rng,
    tally: &mut Tally,
) -> Result<(), String> {
    world.drive.faults = Default::default();
    world.end_readers();
    // Segments that could not be made are tried again after a pause.
    world.advance_ms(2000)?;
    settle(world, rng, tally)?;
    if world.engine.queued_bytes() > 0 {
        return Err(format!("idle with requests unanswered: {}", world.engine.describe()));
    }
    world.check_now()?;
    workload.delete_half(world)?;
    settle(world, rng, tally)?;
    let before = world.refusals;
    for _ in 0..4 {
        workload.put_small(world, rng)?;
        settle(world, rng, tally)?;
    }
    if world.refusals > before && world.engine.must_keep_share() < 0.15 {
        return Err(format!("refused after deletes: {:?}", world.engine.counts()));
    }
    Ok(())
}

fn settle(world: &mut World, rng: &mut Rng, tally: &mut Tally) -> Result<(), String> {
    for _ in 0..100_000 {
        if world.in_flight.is_empty() {
            return Ok(());
        }
        world.finish_one(rng)?;
        tally.ios += 1;
    }
    Err("the ring never comes to rest".into())
}

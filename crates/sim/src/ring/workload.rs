//! Requests of every kind, with the data that hurts most.

use stoker_format::{BLOCK, ChunkId, RecordKind, VersionId, VolumeId};
use stoker_ring::buffer::Buf;
use stoker_ring::engine::{Append, Crcs, Retention};
use stoker_ring::index::{Entry, Marks};

use super::model::Known;
use super::world::{Ask, Plan, World, seal_of};
use crate::rng::Rng;

/// Chooses what is asked next.
pub struct Workload {
    next: u32,
    plan: Plan,
    clean: Vec<ChunkId>,
}

impl Workload {
    /// For a ring of this shape.
    pub fn new(plan: &Plan) -> Workload {
        Workload { next: 0, plan: plan.clone(), clean: Vec::new() }
    }

    /// After a restart nothing is known to be clean (R8).
    pub fn forget_clean(&mut self) {
        self.clean.clear();
    }

    /// Makes one request.
    pub fn request(&mut self, world: &mut World, rng: &mut Rng) -> Result<(), String> {
        let names = world.model.named();
        match rng.below(100) {
            0..=59 => self.put(world, rng),
            60..=69 => self.delete(world, rng, &names),
            70..=84 => self.mark_clean(world, rng, &names),
            85..=88 => {
                if let Some(chunk) = rng.pick(&names) {
                    world.read_some(*chunk, rng);
                }
            }
            89..=91 => self.mark_dirty(world, rng),
            92..=95 if self.plan.leases => {
                if let Some(chunk) = rng.pick(&names) {
                    world.engine.lease(chunk, Ask::Lease(*chunk));
                }
            }
            96 => world.engine.close_open(Ask::Close),
            97..=98 => self.put_again(world, rng),
            _ => {
                if let Some(chunk) = rng.pick(&names) {
                    let pin = rng.percent(50);
                    world.engine.remark(&[*chunk], |m| {
                        if pin { m.with(Marks::PINNED) } else { m.without(Marks::PINNED) }
                    });
                    let clean = |e: Entry| e.marks.has(Marks::CLEAN) && !is_kept(e.marks);
                    let evictable = world.index.get(chunk).is_some_and(clean);
                    if evictable && let Some(content) = world.model.content(chunk) {
                        world.model.set(*chunk, Known::Either(content));
                    }
                }
            }
        }
        world.pump()
    }

    /// Deletes every second chunk, for the liveness phase.
    pub fn delete_half(&mut self, world: &mut World) -> Result<(), String> {
        let names: Vec<ChunkId> = world.model.named().into_iter().step_by(2).collect();
        for part in names.chunks(world.engine.deaths_max()) {
            self.delete_these(world, part.to_vec());
        }
        world.pump()
    }

    /// Appends a small dirty record.
    pub fn put_small(&mut self, world: &mut World, rng: &mut Rng) -> Result<(), String> {
        let chunk = self.fresh();
        let mut bytes = vec![0; rng.between(1, 2000)];
        rng.fill(&mut bytes);
        self.append(world, chunk, VolumeId(1 + chunk.index % 3), Retention::Dirty, &bytes);
        world.pump()
    }

    fn fresh(&mut self) -> ChunkId {
        self.next += 1;
        ChunkId::new(VersionId([self.next as u8 % 5; 12]), self.next)
    }

    fn put(&mut self, world: &mut World, rng: &mut Rng) {
        let chunk = self.fresh();
        self.put_chunk(world, rng, chunk);
    }

    /// A chunk id that was deleted before may be written again, with other bytes.
    fn put_again(&mut self, world: &mut World, rng: &mut Rng) {
        let faults = &self.plan.faults;
        if faults.rot_percent + faults.misdirected_percent > 0 {
            // A fault may destroy the record of a death; then old bytes under a reused id would be no broken promise.
            return;
        }
        let gone: Vec<ChunkId> =
            world.model.iter().filter(|(_, k)| matches!(k, Known::Absent)).map(|(c, _)| *c).collect();
        if let Some(chunk) = rng.pick(&gone).copied()
            && world.index.get(&chunk).is_none()
            && !world.unsure.contains(&chunk)
        {
            self.put_chunk(world, rng, chunk);
        }
    }

    fn put_chunk(&mut self, world: &mut World, rng: &mut Rng, chunk: ChunkId) {
        let max = world.engine.record_len_max();
        let len = match rng.below(10) {
            0..=3 => rng.between(1, 3000),
            4..=5 => BLOCK * rng.between(1, 2),
            6..=7 => rng.between(3000, 16_000).min(max),
            _ => rng.between(max / 2, max),
        };
        let mut bytes = vec![0; len];
        rng.fill(&mut bytes);
        if rng.percent(25) {
            self.plant_ring_image(world, rng, &mut bytes);
        }
        let retention = if rng.percent(self.plan.never_percent) {
            Retention::Never
        } else if rng.percent(10) {
            Retention::Clean
        } else {
            Retention::Dirty
        };
        // A chunk id belongs to one version of one file, so it never changes its volume.
        let volume = VolumeId(1 + chunk.index % 3);
        self.append(world, chunk, volume, retention, &bytes);
    }

    /// User data that is a copy of the drive, headers and all.
    fn plant_ring_image(&self, world: &World, rng: &mut Rng, bytes: &mut [u8]) {
        let segment = rng.below(self.plan.segments as usize) as u32;
        let room = self.plan.segment_size as usize - bytes.len();
        let from = rng.below(room / 64 + 1) * 64;
        if let Some(image) = world.drive.peek(segment, from, bytes.len()) {
            bytes.copy_from_slice(image);
        }
    }

    fn append(
        &mut self,
        world: &mut World,
        chunk: ChunkId,
        volume: VolumeId,
        retention: Retention,
        bytes: &[u8],
    ) {
        world.model.set(chunk, Known::Either(bytes.into()));
        let evictable = retention == Retention::Clean;
        if evictable {
            self.clean.push(chunk);
        }
        let payload = Buf::copy_of(bytes);
        let crcs = Crcs::of(bytes);
        let (kind, seal) = (RecordKind::Chunk, seal_of(&chunk, bytes.len()));
        let append = Append { chunk, volume, kind, retention, payload, crcs, seal };
        world.engine.append(append, Ask::Put { chunk, evictable });
    }

    fn delete(&mut self, world: &mut World, rng: &mut Rng, names: &[ChunkId]) {
        // Deleting what is still being written is allowed; then either order is right.
        let unanswered = |c: &ChunkId| world.index.get(c).is_none();
        let hasty = rng.percent(10);
        let answered: Vec<ChunkId> = names.iter().filter(|c| hasty || !unanswered(c)).copied().collect();
        // Now and then everything goes at once, as when a volume is deleted.
        let count =
            if rng.percent(5) { answered.len().min(world.engine.deaths_max()) } else { rng.between(1, 3) };
        let mut chosen: Vec<ChunkId> = (0..count).filter_map(|_| rng.pick(&answered).copied()).collect();
        chosen.sort();
        chosen.dedup();
        let hasty: Vec<ChunkId> = chosen.iter().filter(|c| world.index.get(c).is_none()).copied().collect();
        world.unsure.extend(hasty);
        if !chosen.is_empty() {
            self.delete_these(world, chosen);
        }
    }

    /// A reference lost its lake extent: the chunk is must-keep again (R11).
    fn mark_dirty(&mut self, world: &mut World, rng: &mut Rng) {
        let Some(chunk) = rng.pick(&self.clean).copied() else { return };
        let changed = world.engine.remark(&[chunk], |marks| marks.without(Marks::CLEAN));
        if changed > 0
            && !world.unsure.contains(&chunk)
            && let Some(content) = world.model.content(&chunk)
        {
            world.model.set(chunk, Known::Present(content));
            self.clean.retain(|c| *c != chunk);
        }
    }

    fn delete_these(&mut self, world: &mut World, chunks: Vec<ChunkId>) {
        for chunk in &chunks {
            if let Some(content) = world.model.content(chunk) {
                world.model.set(*chunk, Known::Either(content));
            }
        }
        world.engine.delete(&chunks, Ask::Delete(chunks.clone()));
    }

    fn mark_clean(&mut self, world: &mut World, rng: &mut Rng, names: &[ChunkId]) {
        for _ in 0..3 {
            let Some(chunk) = rng.pick(names).copied() else { return };
            if !rng.percent(self.plan.clean_percent) || world.index.get(&chunk).is_none() {
                continue;
            }
            // From now on it may be dropped; never-draining and pinned ones stay.
            let changed = world.engine.remark(&[chunk], |marks| marks.with(Marks::CLEAN));
            let keeps = world.index.get(&chunk).is_some_and(|e| is_kept(e.marks));
            if changed > 0
                && !keeps
                && let Some(content) = world.model.content(&chunk)
            {
                world.model.set(chunk, Known::Either(content));
                self.clean.push(chunk);
            }
        }
    }
}

/// Kept for reasons of its own; said here again, so that the engine is not asked about itself.
fn is_kept(marks: Marks) -> bool {
    marks.has(Marks::NEVER) || marks.has(Marks::PINNED)
}

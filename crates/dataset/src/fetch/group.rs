//! Groups: samples that are read together, and the few reads that bring them.

use stoker_format::BLOCK;

/// Bytes between two samples that are read along rather than asked for in a second read.
pub const GAP_MAX: u64 = 8 << 10;
/// Neighbours are joined to reads of this length at most; a longer sample is a read by itself.
pub const READ_LEN_MAX: usize = 1 << 20;
/// Most memory of a group.
pub const GROUP_BYTES_MAX: usize = 8 << 20;
/// Most samples of a group.
pub const GROUP_SAMPLES_MAX: usize = 1024;

/// Memory below this is counted in whole blocks; above it in steps, so that what is given back fits again.
const EXACT_BLOCKS: usize = 128;

/// Where a sample is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    /// Number of its file.
    pub file: u64,
    /// First byte in it.
    pub offset: u64,
    /// Bytes.
    pub len: usize,
}

impl Place {
    fn end(&self) -> u64 {
        self.offset.saturating_add(self.len as u64)
    }
}

/// Memory for a read: whole blocks, and one more because it need not begin on a block boundary.
pub fn room_len(len: usize) -> usize {
    if len == 0 {
        return 0;
    }
    let blocks = len.div_ceil(BLOCK) + 1;
    let grain = (blocks / EXACT_BLOCKS).next_power_of_two();
    blocks.next_multiple_of(grain) * BLOCK
}

/// Samples that are read together.
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// Numbers of the samples, in the order in which they are wanted.
    pub samples: Vec<u64>,
    /// Where each is.
    pub places: Vec<Place>,
    /// Which read brings each.
    pub read_of: Vec<u32>,
    /// The reads; each sample is inside of one.
    pub reads: Vec<Place>,
    /// Memory that the reads need.
    pub room: usize,
}

impl Group {
    /// Plans the reads.
    pub fn new(samples: Vec<u64>, places: Vec<Place>) -> Group {
        assert_eq!(samples.len(), places.len(), "a place for each sample");
        let mut order: Vec<u32> = (0..places.len() as u32).collect();
        order.sort_unstable_by_key(|index| places[*index as usize]);
        let mut reads: Vec<Place> = Vec::new();
        let mut read_of = vec![0; places.len()];
        for index in order {
            let place = places[index as usize];
            match reads.last_mut().filter(|last| joins(last, &place)) {
                Some(last) => last.len = last.len.max((place.end() - last.offset) as usize),
                None => reads.push(place),
            }
            read_of[index as usize] = reads.len() as u32 - 1;
        }
        let room = reads.iter().map(|read| room_len(read.len)).sum();
        Group { samples, places, read_of, reads, room }
    }

    /// Where a sample begins in its read.
    pub fn start(&self, index: usize) -> usize {
        (self.places[index].offset - self.reads[self.read_of[index] as usize].offset) as usize
    }
}

/// Whether a place, which does not begin before the read, is brought by it too.
fn joins(read: &Place, place: &Place) -> bool {
    let near = place.file == read.file && place.offset <= read.end().saturating_add(GAP_MAX);
    near && (place.end() <= read.end() || place.end() - read.offset <= READ_LEN_MAX as u64)
}

/// Gathers samples until they are enough for a group.
#[derive(Debug)]
pub struct Gatherer {
    room_max: usize,
    samples: Vec<u64>,
    places: Vec<Place>,
    room: usize,
}

impl Gatherer {
    /// For groups that use a quarter of the budget at most, so that some are under way while one is used.
    pub fn new(budget: usize) -> Gatherer {
        let room_max = GROUP_BYTES_MAX.min(budget / 4);
        Gatherer { room_max, samples: Vec::new(), places: Vec::new(), room: 0 }
    }

    /// Takes a sample; gives those before it if it does not fit to them.
    pub fn push(&mut self, sample: u64, place: Place) -> Option<Group> {
        // What lies between neighbours may be read along, which takes no more than two blocks.
        let room = room_len(place.len).max(BLOCK) + BLOCK;
        let is_full = self.room + room > self.room_max || self.samples.len() >= GROUP_SAMPLES_MAX;
        let full = if is_full { self.finish() } else { None };
        self.samples.push(sample);
        self.places.push(place);
        self.room += room;
        full
    }

    /// What was gathered.
    pub fn finish(&mut self) -> Option<Group> {
        self.room = 0;
        let (samples, places) = (std::mem::take(&mut self.samples), std::mem::take(&mut self.places));
        (!samples.is_empty()).then(|| Group::new(samples, places))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place(file: u64, offset: u64, len: usize) -> Place {
        Place { file, offset, len }
    }

    #[test]
    fn neighbours_are_one_read() {
        let places = vec![
            place(0, 20_000, 100),
            place(1, 0, 5),
            place(0, 0, 10_000),
            place(0, 18_000, 2000),
            place(0, 0, 10),
        ];
        let group = Group::new(vec![9, 8, 7, 6, 5], places);
        assert_eq!(group.reads, [place(0, 0, 20_100), place(1, 0, 5)]);
        assert_eq!(group.read_of, [0, 1, 0, 0, 0]);
        assert_eq!((0..5).map(|index| group.start(index)).collect::<Vec<_>>(), [20_000, 0, 0, 18_000, 0]);
    }

    #[test]
    fn reads_have_a_length_unless_a_sample_is_longer() {
        let whole = READ_LEN_MAX as u64;
        let group = Group::new(vec![0, 1], vec![place(0, 0, READ_LEN_MAX), place(0, whole, 1)]);
        assert_eq!(group.reads.len(), 2);
        let group =
            Group::new(vec![0, 1], vec![place(0, 0, 3 * READ_LEN_MAX), place(0, whole, READ_LEN_MAX)]);
        assert_eq!(group.reads, [place(0, 0, 3 * READ_LEN_MAX)]);
    }

    #[test]
    fn rooms_hold_a_read_wherever_it_begins() {
        for len in [1, 4095, 4096, 4097, 17_000, 1 << 20, (4 << 20) + 1, 1 << 30] {
            let room = room_len(len);
            assert!(
                room.is_multiple_of(BLOCK) && room >= len + BLOCK - 1 && room <= len + len / 50 + 2 * BLOCK,
                "{len}"
            );
        }
        assert_eq!(room_len(0), 0);
    }

    proptest! {
        #[test]
        fn each_sample_is_inside_its_read_and_groups_keep_to_the_budget(
            wish in prop::collection::vec((0u64..3, 0u64..200_000, 0usize..40_000), 1..200),
            budget in (64usize << 10)..(4 << 20),
        ) {
            let (mut gatherer, mut groups) = (Gatherer::new(budget), Vec::new());
            for (sample, (file, offset, len)) in wish.iter().enumerate() {
                groups.extend(gatherer.push(sample as u64, place(*file, *offset, *len)));
            }
            groups.extend(gatherer.finish());
            prop_assert!(groups.iter().flat_map(|group| &group.samples).copied().eq(0..wish.len() as u64));
            for group in &groups {
                prop_assert!(group.room <= budget / 4 || group.samples.len() == 1, "{group:?}");
                for (index, place) in group.places.iter().enumerate() {
                    let read = group.reads[group.read_of[index] as usize];
                    prop_assert!(read.file == place.file && read.offset <= place.offset && place.end() <= read.end());
                    prop_assert_eq!(group.start(index) as u64, place.offset - read.offset);
                }
            }
        }
    }
}

//! A table whose places are used again. Each use has a stamp, so that who remembers an earlier one is not taken for the next.

#[derive(Debug)]
struct Place<T> {
    stamp: u32,
    value: Option<T>,
}

#[derive(Debug)]
pub(crate) struct Table<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Table<T> {
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub fn insert(&mut self, value: T) -> (u32, u32) {
        let at = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { stamp: 0, value: None });
            (self.places.len() - 1) as u32
        });
        let place = &mut self.places[at as usize];
        place.value = Some(value);
        (at, place.stamp)
    }

    pub fn remove(&mut self, at: u32) -> Option<T> {
        let place = self.places.get_mut(at as usize)?;
        let value = place.value.take()?;
        place.stamp = place.stamp.wrapping_add(1);
        self.free.push(at);
        Some(value)
    }

    pub fn get(&self, at: u32) -> Option<&T> {
        self.places.get(at as usize)?.value.as_ref()
    }

    pub fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        self.places.get_mut(at as usize)?.value.as_mut()
    }

    pub fn stamp(&self, at: u32) -> u32 {
        self.places.get(at as usize).map_or(0, |place| place.stamp)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let numbered = self.places.iter().enumerate();
        numbered.filter_map(|(at, place)| Some((at as u32, place.value.as_ref()?)))
    }
}

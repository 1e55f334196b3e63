//! Lines of what a program said.

use crate::frame::Frame;

/// A longer line is told in pieces.
pub const LINE_LEN_MAX: usize = 64 << 10;

/// A line, with its end; a progress bar that goes back to the start of its line ends one as well.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// When its first byte was said, milliseconds since 1970.
    pub at_ms: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Not of the program: what became of its words.
    pub is_note: bool,
}

impl Line {
    pub(crate) fn note(at_ms: u64, text: String) -> Line {
        Line { at_ms, bytes: format!("[stoker: {text}]\n").into_bytes(), is_note: true }
    }
}

/// Makes lines of frames, one by one: a frame of many short ones stays as small as it is.
#[derive(Default)]
pub(crate) struct Splitter {
    /// The beginning of a line, and when it was said.
    open: Option<Line>,
    /// What lines are made of now.
    frame: Option<Frame>,
    /// How many of its times and bytes are behind us.
    mark: usize,
    at: usize,
}

impl Splitter {
    /// Takes a frame when nothing is left of the one before; [`cut`](Self::cut) makes its lines, and those before them are told now.
    pub fn add(&mut self, frame: Frame, to: &mut Vec<Line>) {
        if frame.dropped > 0 {
            self.end(to);
            let at_ms = frame.marks.first().map_or(0, |(_, at_ms)| *at_ms);
            to.push(Line::note(at_ms, format!("{} bytes of output were dropped here", frame.dropped)));
        }
        (self.frame, self.mark, self.at) = (Some(frame), 0, 0);
    }

    /// The next line of the frame; none if nothing of it is left but the beginning of one.
    pub fn cut(&mut self) -> Option<Line> {
        let frame = self.frame.as_ref()?;
        while let Some((_, at_ms)) = frame.marks.get(self.mark) {
            let at_ms = *at_ms;
            let end = frame.marks.get(self.mark + 1).map_or(frame.raw.len(), |(offset, _)| *offset);
            if self.at >= end {
                self.mark += 1;
                continue;
            }
            let bytes = &frame.raw[self.at..end];
            let open = self.open.get_or_insert_with(|| Line { at_ms, bytes: Vec::new(), is_note: false });
            let room = LINE_LEN_MAX - open.bytes.len();
            let looked = &bytes[..bytes.len().min(room)];
            let (now, is_whole) = match looked.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
                // Both together are one end.
                Some(at) if looked[at] == b'\r' && looked.get(at + 1) == Some(&b'\n') => (at + 2, true),
                Some(at) => (at + 1, true),
                None => (looked.len(), looked.len() == room),
            };
            open.bytes.extend_from_slice(&bytes[..now]);
            self.at += now;
            if is_whole {
                return self.open.take();
            }
        }
        let is_end = frame.is_end;
        self.frame = None;
        if is_end { self.open.take() } else { None }
    }

    /// What is left of the last line is one.
    pub fn end(&mut self, to: &mut Vec<Line>) {
        while self.frame.is_some() {
            to.extend(self.cut());
        }
        to.extend(self.open.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(frames: &[Frame]) -> Vec<(u64, String)> {
        let (mut splitter, mut lines) = (Splitter::default(), Vec::new());
        for frame in frames {
            splitter.add(frame.clone(), &mut lines);
            while let Some(line) = splitter.cut() {
                lines.push(line);
            }
        }
        splitter.end(&mut lines);
        lines.into_iter().map(|line| (line.at_ms, String::from_utf8(line.bytes).unwrap())).collect()
    }

    #[test]
    fn lines_begin_when_their_first_byte_was_said() {
        let frame = |raw: &[u8], marks: &[(usize, u64)]| Frame {
            raw: raw.to_vec(),
            marks: marks.to_vec(),
            ..Frame::default()
        };
        let found = split(&[
            frame(b"one\ntwo, be", &[(0, 10), (4, 20)]),
            frame(b"gun\r\n10%\r20%\r", &[(0, 30), (5, 40)]),
            Frame { dropped: 9, ..frame(b"last", &[(0, 50)]) },
        ]);
        let expect = [
            (10, "one\n"),
            (20, "two, begun\r\n"),
            (40, "10%\r"),
            (40, "20%\r"),
            (50, "[stoker: 9 bytes of output were dropped here]\n"),
            (50, "last"),
        ];
        assert_eq!(found, expect.map(|(at_ms, text)| (at_ms, text.to_owned())));
    }

    #[test]
    fn a_line_without_end_is_bounded() {
        let long = Frame { raw: vec![b'x'; 3 * LINE_LEN_MAX + 5], marks: vec![(0, 1)], ..Frame::default() };
        let lens: Vec<usize> = split(&[long]).iter().map(|(_, text)| text.len()).collect();
        assert_eq!(lens, [LINE_LEN_MAX, LINE_LEN_MAX, LINE_LEN_MAX, 5]);
    }
}

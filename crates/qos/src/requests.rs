//! Requests that wait: one list per flow, all in one table. A request leaves from any place in its list in constant time.

use crate::group::Group;
use crate::settings::Cost;
use crate::table::Table;
use crate::tag::Class;

/// A request that waits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ticket {
    pub(crate) at: u32,
    pub(crate) stamp: u32,
}

/// What somebody asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub flow: u32,
    pub cost: Cost,
    pub class: Class,
    pub group: Group,
    pub since: u64,
}

#[derive(Debug)]
struct Request {
    asked: Asked,
    before: Option<u32>,
    after: Option<u32>,
}

/// First and last of a list.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Line {
    first: Option<u32>,
    last: Option<u32>,
    pub len: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Requests(Table<Request>);

impl Requests {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn push(&mut self, line: &mut Line, asked: Asked) -> Ticket {
        let request = Request { asked, before: line.last, after: None };
        let (at, stamp) = self.0.insert(request);
        match line.last.and_then(|last| self.0.get_mut(last)) {
            Some(last) => last.after = Some(at),
            None => line.first = Some(at),
        }
        line.last = Some(at);
        line.len += 1;
        Ticket { at, stamp }
    }

    pub fn first(&self, line: &Line) -> Option<(Ticket, &Asked)> {
        let at = line.first?;
        let stamp = self.0.stamp(at);
        self.0.get(at).map(|request| (Ticket { at, stamp }, &request.asked))
    }

    pub fn get(&self, ticket: Ticket) -> Option<&Asked> {
        let request = self.0.get(ticket.at).filter(|_| self.0.stamp(ticket.at) == ticket.stamp);
        request.map(|request| &request.asked)
    }

    pub fn remove(&mut self, line: &mut Line, ticket: Ticket) -> Option<Asked> {
        self.get(ticket)?;
        let request = self.0.remove(ticket.at)?;
        match request.before.and_then(|before| self.0.get_mut(before)) {
            Some(before) => before.after = request.after,
            None => line.first = request.after,
        }
        match request.after.and_then(|after| self.0.get_mut(after)) {
            Some(after) => after.before = request.before,
            None => line.last = request.before,
        }
        line.len -= 1;
        Some(request.asked)
    }
}

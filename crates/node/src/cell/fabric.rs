//! How well one node reaches another: questions without bytes, then bytes that the other drops. For a second at most, and
//! never more pieces on the way than [`AT_ONCE`]: nodes are measured while they work.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream;
use stoker_format::{NodeId, crc32c};
use stoker_store::{ErrorKind, FabricLeg, Order, Report, Result, StoreError};
use tokio::time::Instant;

use super::{Cell, Summed};
use crate::core::Core;

/// Questions without bytes, and how long they may take together.
const TRIPS: usize = 64;
const TRIPS_MAX: Duration = Duration::from_millis(400);

/// Bytes of a piece, pieces, how many of them are on the way, and how long they may take together.
const PIECE: usize = 1 << 20;
const PIECES: usize = 256;
const AT_ONCE: usize = 4;
const PIECES_MAX: Duration = Duration::from_millis(600);

impl Cell {
    /// Measures the way to another node.
    pub(super) async fn measure(&self, to: NodeId) -> Result<FabricLeg> {
        // The first one may have to connect.
        self.send_in_vain(to, None).await?;
        let begun = Instant::now();
        let mut trips_us = Vec::with_capacity(TRIPS);
        while trips_us.len() < TRIPS && begun.elapsed() < TRIPS_MAX {
            let asked = Instant::now();
            self.send_in_vain(to, None).await?;
            trips_us.push(asked.elapsed().as_micros() as u64);
        }
        trips_us.sort_unstable();
        let bytes = Bytes::from(vec![0x5a; PIECE]);
        let crc = Some(crc32c(&bytes));
        let begun = Instant::now();
        let pieces = (0..PIECES).map(|_| Summed { bytes: bytes.clone(), crc, is_claimed: false });
        let sent = stream::iter(pieces)
            .take_while(|_| std::future::ready(begun.elapsed() < PIECES_MAX))
            .map(|piece| self.send_in_vain(to, Some(piece)))
            .buffer_unordered(AT_ONCE);
        let sent: Vec<Result<()>> = sent.collect().await;
        let took_us = begun.elapsed().as_micros().max(1) as u64;
        let count = sent.len() as u64;
        sent.into_iter().collect::<Result<()>>()?;
        let bytes = count * PIECE as u64;
        Ok(FabricLeg {
            from: self.node.to_string(),
            to: to.to_string(),
            round_trips: trips_us.len() as u32,
            p50_us: trips_us.get(trips_us.len() / 2).copied().unwrap_or(0),
            max_us: trips_us.last().copied().unwrap_or(0),
            bytes,
            bytes_per_s: (u128::from(bytes) * 1_000_000 / u128::from(took_us)) as u64,
        })
    }
}

impl Core {
    /// Measures the way from one node to another; whoever is asked asks the first of them.
    pub(crate) async fn fabric(self: &Arc<Core>, from: &str, to: &str) -> Result<FabricLeg> {
        let (from, to) = (self.cell.named(from)?, self.cell.named(to)?);
        if from == to {
            return Err(StoreError::new(ErrorKind::Invalid, "a node has no way to itself"));
        }
        if from == self.node {
            return self.cell.measure(to).await;
        }
        let order = Order::Fabric { from: from.to_string(), to: to.to_string() };
        match self.cell.order_on(from, order).await? {
            Report::Fabric(leg) => Ok(leg),
            _ => Err(StoreError::new(ErrorKind::Invalid, format!("node {from} gave another answer"))),
        }
    }

    /// The same for another node that asks this one.
    pub(super) async fn fabric_here(self: &Arc<Core>, to: &str) -> Result<Report> {
        let to = self.cell.named(to)?;
        if to == self.node {
            return Err(StoreError::new(ErrorKind::Invalid, "a node has no way to itself"));
        }
        self.cell.measure(to).await.map(Report::Fabric)
    }
}

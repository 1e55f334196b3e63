//! Ways to another node that lose requests, lose answers, and deliver late, by a seed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use stoker_catalog::engine::Standby;
use stoker_catalog::remote::CatalogServer;
use stoker_catalog::{BoxFuture, CatalogError, Result, Wire};

use crate::fixture::Dice;

/// What answers at the other end.
pub trait Answers: Send + Sync + 'static {
    fn answer(&self, request: Vec<u8>) -> BoxFuture<'_, Vec<u8>>;
}

impl Answers for CatalogServer {
    fn answer(&self, request: Vec<u8>) -> BoxFuture<'_, Vec<u8>> {
        Box::pin(CatalogServer::answer(self, request))
    }
}

impl Answers for Standby {
    fn answer(&self, request: Vec<u8>) -> BoxFuture<'_, Vec<u8>> {
        Box::pin(Standby::answer(self, request))
    }
}

/// A way whose other end can be changed, and which may be cut or bad.
pub struct Way {
    end: Mutex<Option<Arc<dyn Answers>>>,
    dice: Mutex<Dice>,
    /// Of so many calls about one fails in each of three ways; 0 for none.
    trouble: usize,
    /// Requests arrive and answers do not.
    deaf: AtomicBool,
    /// Answers that did not arrive because of that.
    unheard: AtomicU64,
}

enum Fate {
    Good,
    RequestLost,
    AnswerLost,
    Late,
}

impl Way {
    pub fn new(end: Arc<dyn Answers>) -> Arc<Way> {
        Way::bad(end, 0, 0)
    }

    pub fn bad(end: Arc<dyn Answers>, trouble: usize, seed: u64) -> Arc<Way> {
        let (end, dice) = (Mutex::new(Some(end)), Mutex::new(Dice::new(seed)));
        Arc::new(Way { end, dice, trouble, deaf: AtomicBool::new(false), unheard: AtomicU64::new(0) })
    }

    /// Another end from now on; calls under way go on.
    pub fn lead_to(&self, end: Arc<dyn Answers>) {
        *self.end.lock().unwrap() = Some(end);
    }

    pub fn cut(&self) {
        *self.end.lock().unwrap() = None;
    }

    pub fn answers_lost(&self, lost: bool) {
        self.deaf.store(lost, Ordering::SeqCst);
    }

    pub fn unheard(&self) -> u64 {
        self.unheard.load(Ordering::SeqCst)
    }

    fn fate(&self) -> (Fate, usize) {
        let mut dice = self.dice.lock().unwrap();
        let fate = match self.trouble {
            0 => Fate::Good,
            trouble => match dice.roll(trouble) {
                0 => Fate::RequestLost,
                1 => Fate::AnswerLost,
                2 => Fate::Late,
                _ => Fate::Good,
            },
        };
        (fate, if self.trouble == 0 { 0 } else { dice.roll(8) })
    }
}

fn lost<T>(what: &str) -> Result<T> {
    Err(CatalogError::unavailable(format!("{what} was lost")))
}

impl Wire for Way {
    fn call(&self, request: Vec<u8>) -> BoxFuture<'_, Result<Vec<u8>>> {
        Box::pin(async move {
            // Asked before the end is: what was sent to an end that was replaced since stays unheard.
            let deaf = self.deaf.load(Ordering::SeqCst);
            let Some(end) = self.end.lock().unwrap().clone() else { return lost("the way") };
            let (fate, yields) = self.fate();
            for _ in 0..yields {
                tokio::task::yield_now().await;
            }
            match fate {
                Fate::RequestLost => lost("a request"),
                Fate::Late => {
                    // Overtaken by whatever is sent next.
                    tokio::spawn(async move {
                        for _ in 0..100 {
                            tokio::task::yield_now().await;
                        }
                        end.answer(request).await;
                    });
                    lost("a late request")
                }
                Fate::AnswerLost => {
                    end.answer(request).await;
                    lost("an answer")
                }
                Fate::Good => {
                    let answer = end.answer(request).await;
                    if !deaf && !self.deaf.load(Ordering::SeqCst) {
                        return Ok(answer);
                    }
                    self.unheard.fetch_add(1, Ordering::SeqCst);
                    lost("an answer")
                }
            }
        })
    }
}

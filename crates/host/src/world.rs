//! What is around a node: wall clock, random numbers, and the runtime that its tasks run in. They are the machine's, unless
//! a simulation gives its own; nothing else knows the difference.

use std::cell::RefCell;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio::task::{JoinHandle, JoinSet};

/// A simulated machine that a node runs on.
pub trait World: Send + Sync + 'static {
    /// Milliseconds since 1970 by the clock of this machine, which may be wrong.
    fn now_ms(&self) -> u64;
    /// Fills bytes with random ones.
    fn fill(&self, bytes: &mut [u8]);
    /// Whether tasks of the node run. Not ready: the process is stopped, and wakes the task when it goes on. False: it is
    /// dead, and nothing of it runs again.
    fn poll_alive(&self, cx: &mut Context<'_>) -> Poll<bool>;
}

/// A world to be given to a node.
#[derive(Clone)]
pub struct GivenWorld(pub Arc<dyn World>);

impl fmt::Debug for GivenWorld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GivenWorld")
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<dyn World>>> = const { RefCell::new(None) };
}

/// Asks the world of the task that runs now; none outside simulations.
pub fn current<T>(ask: impl FnOnce(&dyn World) -> T) -> Option<T> {
    CURRENT.with_borrow(|world| world.as_deref().map(ask))
}

/// A future that runs in a world: it sees its clock, stops with it, and dies with it.
pub struct InWorld<F> {
    world: Arc<dyn World>,
    future: Option<Pin<Box<F>>>,
}

impl<F: Future> InWorld<F> {
    /// Puts a future into a world.
    pub fn new(world: &GivenWorld, future: F) -> InWorld<F> {
        InWorld { world: world.0.clone(), future: Some(Box::pin(future)) }
    }

    fn within<T>(world: &Arc<dyn World>, run: impl FnOnce() -> T) -> T {
        struct Back(Option<Arc<dyn World>>);
        impl Drop for Back {
            fn drop(&mut self) {
                CURRENT.set(self.0.take());
            }
        }
        let _back = Back(CURRENT.replace(Some(world.clone())));
        run()
    }
}

impl<F: Future> Future for InWorld<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        match this.world.poll_alive(cx) {
            Poll::Ready(true) => {}
            Poll::Ready(false) => {
                let dead = this.future.take();
                InWorld::<F>::within(&this.world, || drop(dead));
                return Poll::Pending;
            }
            Poll::Pending => return Poll::Pending,
        }
        let Some(future) = &mut this.future else { return Poll::Pending };
        InWorld::<F>::within(&this.world, || future.as_mut().poll(cx))
    }
}

/// Starts the tasks of a node.
pub struct Tasks {
    runtime: Handle,
    world: Option<GivenWorld>,
}

impl Tasks {
    /// In the runtime of the caller.
    pub fn new(world: Option<GivenWorld>) -> Tasks {
        Tasks { runtime: Handle::current(), world }
    }

    /// Starts a task.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        match &self.world {
            None => self.runtime.spawn(future),
            Some(world) => self.runtime.spawn(InWorld::new(world, future)),
        }
    }

    /// Starts one of several tasks that are waited for together.
    pub fn spawn_into<F>(&self, set: &mut JoinSet<F::Output>, future: F)
    where
        F: Future<Output: Send> + Send + 'static,
    {
        match &self.world {
            None => set.spawn_on(future, &self.runtime),
            Some(world) => set.spawn_on(InWorld::new(world, future), &self.runtime),
        };
    }

    /// Does what blocks, elsewhere; in a simulation nothing blocks, and no thread may disturb the order.
    pub async fn blocking<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        match &self.world {
            None => self.runtime.spawn_blocking(work).await.ok(),
            Some(_) => Some(work()),
        }
    }
}

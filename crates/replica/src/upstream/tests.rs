//! Pulls that fail, take their time, or never end.

use std::sync::atomic::{AtomicUsize, Ordering};

use micabox_registry::{Direction, Reason};
use tokio::time::sleep;

use super::*;

const DEAD: &str = "dead.example";
const GOOD: &str = "good.example";

struct Tried {
    upstream: Arc<Upstream>,
    store: Store,
    _directory: tempfile::TempDir,
    /// How many pulls have begun.
    begun: Arc<AtomicUsize>,
}

/// Pulls take this time, or fail as what can't be reached.
fn with(time: Option<Duration>) -> Tried {
    let directory = tempfile::tempdir().unwrap();
    let begun: Arc<AtomicUsize> = Arc::default();
    let count = Arc::clone(&begun);
    let pull = move |_, reference: Reference, way| -> Pulled {
        count.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            match time {
                _ if reference.registry() == DEAD && way == Way::Mirrors => {
                    std::future::pending().await
                }
                // Sleep: how long a pull takes, on the test's own clock.
                Some(time) => sleep(time).await,
                None => return Err(PullError::Registry(unreachable(&reference))),
            }
            Ok(Digest::of(b""))
        })
    };
    let registries = [DEAD, GOOD].map(str::to_owned).into();
    Tried {
        upstream: Arc::new(Upstream::with(
            registries,
            Box::new(pull),
            Box::new(|_| Box::pin(std::future::pending())),
            Arc::new(|_| {}),
        )),
        store: Store::open(&directory.path().join("store")).unwrap(),
        _directory: directory,
        begun,
    }
}

fn unreachable(reference: &Reference) -> RegistryError {
    let reason = Reason::Connect {
        host: reference.registry().to_owned(),
        problem: "refused".to_owned(),
    };
    RegistryError {
        direction: Direction::Fetch,
        what: reference.to_string(),
        host: reference.registry().to_owned(),
        reason: Box::new(reason),
    }
}

impl Tried {
    async fn fetch(&self, client: u8, name: &str) -> Result<(), Code> {
        self.fetch_by(Way::Mirrors, client, name).await
    }

    async fn fetch_by(&self, way: Way, client: u8, name: &str) -> Result<(), Code> {
        let reference = name.parse().unwrap();
        let client = IpAddr::from([192, 0, 2, client]);
        let upstream = &self.upstream;
        let fetched = upstream.fetch(&self.store, &reference, way, client, false);
        fetched.await.map_err(|problem| problem.code)
    }

    fn begun(&self) -> usize {
        self.begun.load(Ordering::Relaxed)
    }
}

const BUSY: Result<(), Code> = Err(Code::TooManyRequests);

#[tokio::test(start_paused = true)]
async fn a_registry_that_says_nothing_leaves_the_others_alone() {
    let tried = with(Some(Duration::ZERO));
    for number in 0..2 * PULLS {
        let name = format!("{DEAD}/x:{number}");
        assert_eq!(tried.fetch(1, &name).await, BUSY);
    }
    assert_eq!(tried.begun(), PULLS);
    assert_eq!(tried.fetch(1, &format!("{GOOD}/x:1")).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn one_client_leaves_pulls_to_others() {
    let tried = with(Some(Duration::ZERO));
    for number in 0..OF_ONE {
        assert_eq!(tried.fetch(1, &format!("{DEAD}/x:{number}")).await, BUSY);
    }
    let before = Instant::now();
    assert_eq!(tried.fetch(1, &format!("{GOOD}/x:1")).await, BUSY);
    assert_eq!(before.elapsed(), Duration::ZERO);
    assert_eq!(tried.fetch(2, &format!("{GOOD}/x:1")).await, Ok(()));
    // Who joins another one's pull has begun none.
    let begun = tried.begun();
    assert_eq!(tried.fetch(1, &format!("{GOOD}/x:1")).await, Ok(()));
    assert_eq!(tried.begun(), begun);
}

#[tokio::test(start_paused = true)]
async fn those_who_ask_at_once_share_a_pull_and_its_result_for_a_moment() {
    let tried = with(Some(Duration::from_secs(30)));
    let name = format!("{GOOD}/x:1");
    let (one, other) = tokio::join!(tried.fetch(1, &name), tried.fetch(2, &name));
    assert_eq!((one, other), (BUSY, BUSY));
    assert_eq!(tried.fetch(1, &name).await, Ok(()));
    assert_eq!(tried.fetch(2, &name).await, Ok(()));
    assert_eq!(tried.begun(), 1);
    // Sleep: the result's age, on the test's own clock.
    sleep(FRESH * 2).await;
    assert_eq!(tried.fetch(1, &name).await, BUSY);
    assert_eq!(tried.begun(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_can_not_be_reached_rests() {
    let tried = with(None);
    for number in 0..3 {
        let name = format!("{GOOD}/x:{number}");
        assert_eq!(tried.fetch(1, &name).await, Err(Code::Gateway));
    }
    assert_eq!(tried.begun(), 1);
    // Sleep: the registry's rest, on the test's own clock.
    sleep(REST).await;
    let name = format!("{GOOD}/x:0");
    assert_eq!(tried.fetch(1, &name).await, Err(Code::Gateway));
    assert_eq!(tried.begun(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_pull_that_nobody_waits_for_does_not_begin() {
    let tried = with(Some(FORGOTTEN * 4));
    for number in 0..=PULLS {
        assert_eq!(tried.fetch(1, &format!("{GOOD}/x:{number}")).await, BUSY);
    }
    // Sleep: nothing may begin meanwhile, on the test's own clock.
    sleep(FORGOTTEN * 10).await;
    assert_eq!(tried.begun(), PULLS);
    // Asked for again, it does.
    let name = format!("{GOOD}/x:{PULLS}");
    assert_eq!(tried.fetch(1, &name).await, BUSY);
    assert_eq!(tried.begun(), PULLS + 1);
}

#[tokio::test(start_paused = true)]
async fn what_comes_directly_waits_for_no_mirror() {
    let tried = with(Some(Duration::ZERO));
    for number in 0..PULLS {
        assert_eq!(tried.fetch(1, &format!("{DEAD}/x:{number}")).await, BUSY);
    }
    let name = format!("{DEAD}/x:0");
    assert_eq!(tried.fetch_by(Way::Direct, 1, &name).await, Ok(()));
    assert_eq!(tried.begun(), PULLS + 1);
}

#[tokio::test(start_paused = true)]
async fn a_result_that_is_forgotten_answers_no_more() {
    let tried = with(Some(Duration::ZERO));
    let name = format!("{GOOD}/x:1");
    assert_eq!(tried.fetch(1, &name).await, Ok(()));
    let reference = name.parse().unwrap();
    tried.upstream.forget(&reference, Way::Direct);
    assert_eq!(tried.fetch(1, &name).await, Ok(()));
    assert_eq!(tried.begun(), 1);
    tried.upstream.forget(&reference, Way::Mirrors);
    assert_eq!(tried.fetch(1, &name).await, Ok(()));
    assert_eq!(tried.begun(), 2);
    // A pull that is under way has no result yet.
    let name = format!("{DEAD}/x:1");
    assert_eq!(tried.fetch(1, &name).await, BUSY);
    tried.upstream.forget(&name.parse().unwrap(), Way::Mirrors);
    assert_eq!(tried.fetch(1, &name).await, BUSY);
    assert_eq!(tried.begun(), 3);
}

//! Users of a sandbox, and what paths are relative to.
//!
//! A sandbox's files of accounts are what its programs make of them. They are read line by line, and what is not looked
//! for is not kept.

use std::path::{Component, Path, PathBuf};

use micabox_async::Files;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::OnceCell;
use tokio::task::yield_now;

use crate::e2b::call::Call;
use crate::e2b::places::SMALL;
use crate::e2b::problem::{Kind, Problem};
use crate::e2b::sandbox::Served;

/// The files of accounts, and most bytes that are read of one: some thousand users.
const USERS: &str = "/etc/passwd";
const GROUPS: &str = "/etc/group";
const MOST: usize = 256 << 10;

/// Bytes of a file of accounts that are read at a time.
const PIECE: usize = 16 << 10;

/// Most bytes of a line: behind its name and number a group has its members.
const LINE: usize = 1024;

/// Most memory that all names of both files take.
const NAMES: usize = 8 * MOST;

/// Most characters of a user's name, and bytes of a path.
const NAME: usize = 64;
const PATH: usize = 4096;

/// Where a request works: as whom, and from which directory.
#[derive(Clone, Debug)]
pub struct Caller {
    pub user: String,
    base: PathBuf,
    /// The user's home, once it is known.
    home: OnceCell<PathBuf>,
    files: Files,
}

/// Checks a user's name, which the sandbox looks up.
pub fn checked(name: &str) -> Result<String, Problem> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.len() > NAME || !name.chars().all(is_plain) {
        let message = "the user's name is not as expected";
        return Err(Problem::new(Kind::Unauthenticated, message));
    }
    Ok(name.to_owned())
}

impl Caller {
    /// A user other than the image's works from its home, the image's from the image's directory.
    pub async fn of(served: &Served, user: Option<&str>) -> Result<Self, Problem> {
        let root = served.connect().await?.files();
        let defaults = served.record().defaults.as_ref();
        let own = defaults.map_or("", |defaults| &defaults.user);
        let user = user.filter(|user| !user.is_empty());
        let (base, known) = match user {
            Some(user) => {
                let unknown = || {
                    let message = format!("the sandbox has no user `{user}`");
                    Problem::new(Kind::Unauthenticated, message)
                };
                let home = home(&root, user).await.ok_or_else(unknown)?;
                (home.clone(), OnceCell::new_with(Some(home)))
            }
            None => {
                let workdir = defaults.map(|defaults| (&defaults.workdir).into());
                (workdir.unwrap_or_default(), OnceCell::new())
            }
        };
        let user = user.unwrap_or(own).to_owned();
        Ok(Self {
            base: if base.is_absolute() { base } else { "/".into() },
            home: known,
            files: root.as_user(&user),
            user,
        })
    }

    pub fn files(&self) -> &Files {
        &self.files
    }

    /// Returns the user without a group.
    pub fn name(&self) -> &str {
        match self.user.split(':').next() {
            None | Some("") => "root",
            Some(name) => name,
        }
    }

    pub fn base(&self) -> &Path {
        &self.base
    }

    /// Looks the user's home up once: a request may have thousands of paths.
    async fn home(&self) -> &Path {
        let find = || async {
            let home = home(&self.files, &self.user).await;
            home.unwrap_or_else(|| "/".into())
        };
        self.home.get_or_init(find).await
    }

    /// Returns a path as an absolute one, without `.` and `..`.
    pub async fn path(&self, given: &str) -> Result<PathBuf, Problem> {
        if given.len() > PATH || given.contains('\0') {
            return Err(Problem::invalid("the path is too long, or has a NUL byte"));
        }
        let joined = match given.strip_prefix('~') {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => {
                self.home().await.join(rest.trim_start_matches('/'))
            }
            _ => self.base.join(given),
        };
        let mut path = PathBuf::from("/");
        for part in joined.components() {
            match part {
                Component::Normal(name) => path.push(name),
                Component::ParentDir => {
                    path.pop();
                }
                _ => {}
            }
        }
        Ok(path)
    }
}

/// The home of a user, who is named or numbered, with or without a group; root's without a name.
async fn home(files: &Files, user: &str) -> Option<PathBuf> {
    let name = match user.split(':').next().unwrap_or_default() {
        "" => "root",
        name => name,
    };
    let found = match open(files, USERS).await {
        Some(lines) => home_in(lines, name).await,
        None => None,
    };
    // Root is one without a file of accounts, too.
    found.or_else(|| ["root", "0"].contains(&name).then(|| "/root".into()))
}

async fn home_in(mut lines: Lines<impl AsyncRead + Unpin>, name: &str) -> Option<PathBuf> {
    let wanted = name.parse().ok();
    let mut numbered = None;
    while let Some(line) = lines.next().await {
        let Some((known, number)) = account(line) else {
            continue;
        };
        let Some(home) = line.split(':').nth(5) else {
            continue;
        };
        if known == name {
            return Some(home.into());
        }
        if numbered.is_none() && wanted == Some(number) {
            numbered = Some(home.into());
        }
    }
    numbered
}

/// The name and number of a user or group.
fn account(line: &str) -> Option<(&str, u32)> {
    let mut fields = line.split(':');
    let name = fields.next().filter(|name| !name.is_empty())?;
    let number = fields.nth(1)?.parse().ok()?;
    Some((name, number))
}

/// Returns the name of the account with this number, if there is one.
async fn only(files: &Files, path: &str, wanted: u32) -> Names {
    let mut names = Names::default();
    if let Some(mut lines) = open(files, path).await {
        while let Some(line) = lines.next().await {
            if let Some((name, number)) = account(line)
                && number == wanted
            {
                names.add(name, number);
                break;
            }
        }
    }
    names
}

/// Opens a file of accounts. What is not there or can't be read has none.
async fn open(files: &Files, path: &str) -> Option<Lines<impl AsyncRead + Unpin>> {
    let file = files.open_range(path, 0, Some(MOST as u64)).await.ok()?;
    Some(Lines::new(file))
}

/// The lines of a file, which is read as they are asked for.
struct Lines<R> {
    from: R,
    piece: Vec<u8>,
    /// Bytes of the piece that have been used.
    used: usize,
    /// Bytes that have been read.
    read: usize,
    line: String,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    fn new(from: R) -> Self {
        Self {
            from,
            piece: Vec::new(),
            used: 0,
            read: 0,
            line: String::new(),
        }
    }

    /// Returns the next line; of one that is too long, the fields that are whole in its beginning. None at the end.
    async fn next(&mut self) -> Option<&str> {
        let mut line = Vec::new();
        loop {
            let rest = self.piece.get(self.used..).unwrap_or_default();
            let end = rest.iter().position(|byte| *byte == b'\n');
            let part = rest.iter().take(end.unwrap_or(rest.len()));
            line.extend(part.take((LINE + 1).saturating_sub(line.len())));
            if let Some(end) = end {
                self.used += end + 1;
                break;
            }
            match self.fill().await {
                0 if line.is_empty() || self.read >= MOST => return None,
                0 => break,
                _ => {}
            }
        }
        if line.len() > LINE {
            let whole = line.iter().rposition(|byte| *byte == b':');
            line.truncate(whole.unwrap_or(0));
        }
        self.line = String::from_utf8_lossy(&line).into_owned();
        Some(&self.line)
    }

    /// Reads another piece, after others have had their turn. Returns its length.
    async fn fill(&mut self) -> usize {
        yield_now().await;
        self.piece.resize(PIECE, 0);
        let most = PIECE.min(MOST.saturating_sub(self.read));
        let piece = self.piece.get_mut(..most).unwrap_or_default();
        let count = self.from.read(piece).await.unwrap_or(0);
        self.piece.truncate(count);
        self.used = 0;
        self.read += count;
        count
    }
}

/// Names of users or groups by their numbers.
#[derive(Debug, Default)]
struct Names {
    /// Each with a line's end.
    text: String,
    /// Numbers, and where their names begin.
    all: Vec<(u32, usize)>,
}

impl Names {
    fn add(&mut self, name: &str, number: u32) {
        self.all.push((number, self.text.len()));
        self.text.push_str(name);
        self.text.push('\n');
    }

    fn bytes(&self) -> usize {
        self.text.len() + size_of_val(&*self.all)
    }

    /// Has the numbers found, the first name of each.
    fn sort(&mut self) {
        self.all.sort_unstable();
    }

    fn get(&self, number: u32) -> String {
        let at = self.all.partition_point(|(known, _)| *known < number);
        let found = self.all.get(at).filter(|(known, _)| *known == number);
        let name = found.and_then(|(_, begin)| self.text.get(*begin..)?.lines().next());
        name.map_or_else(|| number.to_string(), str::to_owned)
    }
}

/// A sandbox's own account of its users and groups.
#[derive(Debug, Default)]
pub struct Accounts {
    users: Names,
    groups: Names,
}

impl Accounts {
    /// Reads all, for a list.
    pub async fn read(files: &Files, call: &Call) -> Result<Self, Problem> {
        let mut accounts = Self::default();
        let (mut bytes, mut has_room) = (0, false);
        for (path, names) in accounts.each() {
            let Some(mut lines) = open(files, path).await else {
                continue;
            };
            let before = bytes;
            while let Some(line) = lines.next().await {
                if let Some((name, number)) = account(line) {
                    names.add(name, number);
                }
                bytes = before + names.bytes();
                if bytes > SMALL / 2 && !has_room {
                    call.make_room(NAMES).await?;
                    has_room = true;
                }
            }
            names.sort();
        }
        Ok(accounts)
    }

    /// Looks for a user and a group.
    pub async fn of(files: &Files, user: u32, group: u32) -> Self {
        let (users, groups) = tokio::join!(only(files, USERS, user), only(files, GROUPS, group));
        Self { users, groups }
    }

    fn each(&mut self) -> [(&'static str, &mut Names); 2] {
        [(USERS, &mut self.users), (GROUPS, &mut self.groups)]
    }

    /// The name of a user, or its number.
    pub fn user(&self, number: u32) -> String {
        self.users.get(number)
    }

    /// The name of a group, or its number.
    pub fn group(&self, number: u32) -> String {
        self.groups.get(number)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use tokio::io::ReadBuf;

    use super::*;

    /// Does at once what waits for nothing but its turn.
    fn at_once<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(work)
    }

    /// A file that has no end.
    #[derive(Default)]
    struct Endless(usize);

    impl AsyncRead for Endless {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            to: &mut ReadBuf<'_>,
        ) -> Poll<std::io::Result<()>> {
            let count = to.remaining();
            to.put_slice(&b"a:x:7:\n".repeat(count / 7 + 1)[..count]);
            self.0 += count;
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn a_file_of_accounts_is_read_in_pieces_between_which_others_have_their_turn() {
        let mut lines = Lines::new(Endless::default());
        let mut context = Context::from_waker(Waker::noop());
        let mut turns = 0;
        {
            let mut all = std::pin::pin!(async { while lines.next().await.is_some() {} });
            while all.as_mut().poll(&mut context).is_pending() {
                turns += 1;
            }
        }
        assert!(turns >= MOST / PIECE, "{turns}");
        assert_eq!(lines.from.0, MOST);
        assert!(lines.piece.capacity() <= PIECE);
    }

    #[test]
    fn no_more_is_read_than_what_is_looked_for_needs() {
        let mut from = Endless::default();
        let home = at_once(home_in(Lines::new(&mut from), "a"));
        assert_eq!(home, None);
        let text =
            b"a:x:1:1::/first:/bin/sh\na:x:2:2::/second:\nb:x:1:1::/third:\n1:x:9:9::/named:";
        let find = |name: &str| at_once(home_in(Lines::new(&text[..]), name));
        assert_eq!(find("a"), Some("/first".into()));
        assert_eq!(find("b"), Some("/third".into()));
        assert_eq!(find("2"), Some("/second".into()));
        assert_eq!(find("1"), Some("/named".into()));
        assert_eq!(find("3"), None);
        let mut from = text.chain(Endless::default());
        assert_eq!(
            at_once(home_in(Lines::new(&mut from), "a")),
            Some("/first".into())
        );
        assert!(from.get_ref().1.0 <= PIECE);
    }

    #[test]
    fn of_a_line_that_is_too_long_the_first_fields_are_known() {
        let members = "member,".repeat(LINE);
        let text = format!("many:x:5:{members}\nnext:x:6:\n{members}\nlast:x:7:");
        let mut lines = Lines::new(text.as_bytes());
        let mut names = Names::default();
        while let Some(line) = at_once(lines.next()) {
            assert!(line.len() <= LINE);
            if let Some((name, number)) = account(line) {
                names.add(name, number);
            }
        }
        names.add("second", 5);
        names.sort();
        let found = [5, 6, 7, 8].map(|number| names.get(number));
        assert_eq!(found, ["many", "next", "last", "8"]);
    }
}

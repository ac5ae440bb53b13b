// E2B's npm packages, unchanged, in the ways of their documentation. Run by run.py.

import assert from 'node:assert/strict'
import test, { after, before } from 'node:test'

import { Sandbox } from 'e2b'
import { Sandbox as Interpreter } from '@e2b/code-interpreter'
import { WebSocket } from 'ws'

const server = new URL(process.env.E2B_API_URL)
let box

async function until(what, isSo) {
  const end = Date.now() + 1000 * Number(process.env.PATIENCE)
  while (!(await isSo())) {
    assert.ok(Date.now() < end, `not in time: ${what}`)
    // Sleep: the interval between questions.
    await new Promise((wake) => setTimeout(wake, 50))
  }
}

before(async () => {
  box = await Sandbox.create('sample', { timeoutMs: 3_600_000, metadata: { of: 'npm' } })
})

after(async () => {
  await box.kill()
})

test('commands in the foreground and background', async () => {
  const said = []
  const result = await box.commands.run('echo out; echo err >&2', { onStdout: (text) => said.push(text) })
  assert.equal(result.stdout, 'out\n')
  assert.equal(result.stderr, 'err\n')
  assert.deepEqual(said, ['out\n'])
  await assert.rejects(box.commands.run('exit 3'), { exitCode: 3 })
  const cat = await box.commands.run('cat', { background: true, stdin: true })
  await box.commands.sendStdin(cat.pid, 'in')
  await box.commands.closeStdin(cat.pid)
  assert.equal((await cat.wait()).stdout, 'in')
  const sleep = await box.commands.run('sleep 100', { background: true })
  assert.ok((await box.commands.list()).some((one) => one.pid === sleep.pid))
  assert.equal(await box.commands.kill(sleep.pid), true)
  await assert.rejects(sleep.wait())
})

test('a terminal', async () => {
  let said = ''
  const decoder = new TextDecoder()
  const onData = (data) => (said += decoder.decode(data))
  const pty = await box.pty.create({ cols: 80, rows: 24, onData })
  await box.pty.resize(pty.pid, { cols: 100, rows: 30 })
  await box.pty.sendInput(pty.pid, new TextEncoder().encode('stty size; exit\n'))
  await pty.wait()
  assert.match(said, /30 100/)
})

test('files and their changes', async () => {
  const names = []
  const watch = await box.files.watchDir('/tmp', (event) => names.push(`${event.type} ${event.name}`))
  const written = await box.files.write('/tmp/a.txt', 'text')
  assert.equal(written.path, '/tmp/a.txt')
  assert.equal(await box.files.read('/tmp/a.txt'), 'text')
  assert.deepEqual(await box.files.read('/tmp/a.txt', { format: 'bytes' }), new TextEncoder().encode('text'))
  await box.files.write('/tmp/empty', '')
  assert.equal(await box.files.read('/tmp/empty'), '')
  assert.equal(await box.files.makeDir('/tmp/d/e'), true)
  assert.equal(await box.files.makeDir('/tmp/d/e'), false)
  await box.files.rename('/tmp/a.txt', '/tmp/b.txt')
  assert.equal(await box.files.exists('/tmp/a.txt'), false)
  assert.equal((await box.files.getInfo('/tmp/b.txt')).size, 4)
  assert.ok((await box.files.list('/tmp')).some((entry) => entry.name === 'd' && entry.type === 'dir'))
  await box.files.remove('/tmp/b.txt')
  await until('all is reported', () => names.includes('remove b.txt'))
  assert.ok(names.includes('create a.txt') && names.includes('rename a.txt'), String(names))
  await watch.stop()
  const url = await box.downloadUrl('/tmp/empty')
  assert.equal((await fetch(url)).status, 200)
})

test('lists, time and pauses', async () => {
  const found = await Sandbox.list({ query: { metadata: { of: 'npm' } } }).nextItems()
  assert.deepEqual(found.map((one) => one.sandboxId), [box.sandboxId])
  const before = Date.now()
  await box.setTimeout(3_000_000)
  const after = Date.now()
  const end = (await box.getInfo()).endAt.getTime()
  assert.ok(end > before + 2_998_000 && end < after + 3_002_000, String([before, end, after]))
  assert.equal(await box.pause(), true)
  assert.equal(await box.isRunning(), false)
  const again = await Sandbox.connect(box.sandboxId)
  assert.equal((await again.commands.run('echo again')).stdout, 'again\n')
})

test('a WebSocket at a port', async () => {
  // A server in Python without packages: it sends back what it gets, in frames of less than 126 bytes.
  await box.files.write('/tmp/echo.py', `
import base64, hashlib, socket
server = socket.create_server(("127.0.0.1", 8765))
while True:
    client = server.accept()[0]
    head = b""
    while b"\\r\\n\\r\\n" not in head:
        head += client.recv(4096)
    key = next(l.split(b": ")[1] for l in head.split(b"\\r\\n") if l.lower().startswith(b"sec-websocket-key"))
    digest = hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
    client.sendall(b"HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n"
        b"Sec-WebSocket-Accept: " + base64.b64encode(digest) + b"\\r\\n\\r\\n")
    frame = client.recv(4096)
    count, mask = frame[1] & 127, frame[2:6]
    text = bytes(byte ^ mask[at % 4] for at, byte in enumerate(frame[6:6 + count]))
    client.sendall(bytes([0x81, count]) + text)
    client.close()
`)
  await box.commands.run('python3 /tmp/echo.py', { background: true, timeoutMs: 0 })
  const host = box.getHost(8765)
  assert.ok(host.endsWith(`.localhost:${server.port}`))
  const talk = () =>
    new Promise((done, failed) => {
      const socket = new WebSocket(`ws://${server.host}/`, { headers: { host } })
      socket.on('open', () => socket.send('to the port'))
      socket.on('message', (data) => done(String(data)))
      socket.on('error', failed)
    })
  let answer
  await until('the port answers', async () => {
    answer = await talk().catch(() => undefined)
    return answer !== undefined
  })
  assert.equal(answer, 'to the port')
})

test('code that keeps its state', async () => {
  const interpreter = await Interpreter.create()
  try {
    await interpreter.runCode('x = 1')
    const execution = await interpreter.runCode('x += 1; print("said"); x')
    assert.equal(execution.text, '2')
    assert.deepEqual(execution.logs.stdout, ['said\n'])
    assert.equal((await interpreter.runCode('1/0')).error.name, 'ZeroDivisionError')
  } finally {
    await interpreter.kill()
  }
})

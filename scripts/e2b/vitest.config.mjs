// As E2B's own vitest.config.mts, with the tests of sandboxes and the API alone, and time for a slow machine.
import { defineConfig } from 'vitest/config'

export default defineConfig({
  test: {
    include: ['tests/{api,sandbox}/**/*.test.ts'],
    setupFiles: ['tests/globalFetchFallback.setup.ts'],
    testTimeout: 120_000,
  },
})

// Preact with htm: components without a build step. Text is always inserted as text, never as markup.

import { createContext, Fragment, h, render } from "./vendor/preact.mjs";
import { useCallback, useContext, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.mjs";
import htm from "./vendor/htm.mjs";

export const html = htm.bind(h);
export { createContext, Fragment, render, useCallback, useContext, useEffect, useLayoutEffect, useMemo, useRef, useState };
